"""Names of release 0.1 that have moved: they keep working for one release, with a warning that names the new place."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_PARTS = (
    *("STARTS", "AtRandom", "BelowThreshold", "Connected", "Constant", "Cosine", "Cubic", "Dense", "ErdosRenyi"),
    *("ErdosRenyiKernel", "Explicit", "GlobalTop", "InPlace", "Linear", "Lowest", "Mix", "Never", "Periodic"),
    *("Proportional", "RandomSign", "Scattered", "SignFlipped", "Strongest", "Tiny", "Uniform"),
    *("dense", "erdos_renyi", "erdos_renyi_kernel", "explicit", "uniform"),
)
NAMES = dict.fromkeys(_PARTS, "rewire.parts") | dict.fromkeys(
    ("Context", "Edit", "Edited", "Layer", "LayerSpec", "Signal"), "rewire.core"
)
RENAMED = {"rewire": ("rewire.core", "plan_rewiring"), "Top": ("rewire.core", "ScoredPositions")}

# A module that was split is looked for in all that it became.
MODULES: dict[str, tuple[str, ...]] = {
    "rewire.checkpoint": ("rewire.rewirer.state",),
    "rewire.compressed": ("rewire.io.csr",),
    "rewire.distributed.peers": ("rewire.distributed.handshake",),
    "rewire.distributed.saving": ("rewire.io.sharded",),
    "rewire.distributed.shards": ("rewire.distributed.topk",),
    "rewire.export": (
        "rewire.io.sparse_file",
        "rewire.io.dense_file",
        "rewire.io.csr_file",
        "rewire.io.onnx_file",
    ),
    "rewire.files": ("rewire.io.files",),
    "rewire.layer": ("rewire.core.layer", "rewire.core.views", "rewire.core.across_layers"),
    "rewire.method": ("rewire.core.method", "rewire.core.capture"),
    "rewire.packed_graph": ("rewire.inference.graph",),
    "rewire.plain": ("rewire.stores.convert",),
    "rewire.ranks": ("rewire.core.ranks",),
    "rewire.reachability": ("rewire.model.reachability",),
    "rewire.select": ("rewire.model.select",),
    "rewire.stores.flat": ("rewire.core.dense_ops",),
    "rewire.stores.modules": ("rewire.nn.packed", "rewire.nn.coverage", "rewire.model.state_names"),
    "rewire.stores.store": ("rewire.stores.protocol",),
    "rewire.stores.twins": ("rewire.nn.hwcn", "rewire.nn.fusion", "rewire.nn.replace"),
    "rewire.topology": ("rewire.core.topology", "rewire.parts.apportion"),
}


def find(name: str) -> Any:
    """What ``rewire.<name>`` was, with a warning; ``None`` if there never was such a name."""
    if f"rewire.{name}" in MODULES:
        return importlib.import_module(f"rewire.{name}")
    home, now = RENAMED.get(name) or (NAMES.get(name), name)
    if home is None:
        return None
    _warn(f"rewire.{name}", f"{home}.{now}")
    return getattr(importlib.import_module(home), now)


def _warn(old: str, new: str) -> None:
    warnings.warn(
        f"{old} has moved to {new}; the old name goes with the next release", DeprecationWarning, stacklevel=4
    )


class _MovedModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes ``import rewire.select`` give a module that looks its names up in ``rewire.model.select``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Only what has moved."""
        return importlib.util.spec_from_loader(fullname, self) if fullname in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is imported until a name is looked up."""
        homes = MODULES[module.__name__]
        _warn(module.__name__, " and ".join(homes))

        def look_up(name: str) -> Any:
            for home in homes:
                if hasattr(home_module := importlib.import_module(home), name):
                    return getattr(home_module, name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        module.__dict__["__getattr__"] = look_up


def install() -> None:
    """Let the modules that have moved be imported by their old names."""
    if not any(isinstance(finder, _MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(_MovedModules())
