"""The ``rewire`` command."""
