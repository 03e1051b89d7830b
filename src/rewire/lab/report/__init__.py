"""Tables, figures and the report, from what runs left on disk."""
