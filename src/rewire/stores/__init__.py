"""Who holds the numbers. A store implements ``Layer`` for each weight and applies edits to it."""
