"""Rewire: dynamic sparse training for PyTorch.

The public names are listed in ``__init__.pyi``. They are imported when they are first used, so that ``rewire --help``
does not wait for torch.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

from rewire import _moved

__version__ = "0.2.0"


def _listed() -> dict[str, str]:
    """Where each public name comes from, as the stub says."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_HOME = _listed()
__all__ = sorted(_HOME)

_moved.install()


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        value = _moved.find(name)  # warns: it is cached nowhere, so that every use says so
        if value is None:
            raise AttributeError(f"module 'rewire' has no attribute {name!r}")
        return value
    value = importlib.import_module(f"rewire.{name}") if home == "rewire" else getattr(_module(home), name)
    globals()[name] = value
    return value


def _module(name: str) -> Any:
    return importlib.import_module(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
