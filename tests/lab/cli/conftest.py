"""The console is made before any test sets COLUMNS: one made in a test would keep that width in all later tests."""

import rewire.lab.cli.terminal  # noqa: F401
