"""The lab: networks, data, training and evidence; nothing in the library itself imports it.

``Run`` names one training, ``grid`` makes many of them; ``rewire train``, ``sweep`` and ``report`` do the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rewire.lab.experiments.grid import grid as grid
    from rewire.lab.run import Run as Run

_HOME = {"Run": "rewire.lab.run", "grid": "rewire.lab.experiments.grid"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rewire.lab' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
