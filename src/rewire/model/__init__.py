"""Finding things in a user's model: which weights become sparse, and whether a signal passes through them."""
