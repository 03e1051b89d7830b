"""One training run: from a ``Run`` to its folder of results."""
