"""Packages that only some functions use: where one is missing, the error names the extra that brings it."""

from importlib.util import find_spec


def need(extra: str, *packages: str) -> None:
    """Raise if a package is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"this needs {' and '.join(missing)}, which is not installed: pip install 'rewire[{extra}]'"
        )
