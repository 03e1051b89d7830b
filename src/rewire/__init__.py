"""Rewire: dynamic sparse training for PyTorch.

Names are imported from their modules when they are first used, so that ``rewire --help`` does not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rewire.attach import sparsify
    from rewire.export import load_sparse
    from rewire.inference import pack
    from rewire.layer import Context, Edited, Layer, LayerSpec, Signal
    from rewire.method import Method, Rewiring, rewire
    from rewire.methods import METHODS, deepr, dsr, ggr, gmp, granet, rigl, set_, set_rigl, snfs, static
    from rewire.parts.allocate import GlobalTop, InPlace, Proportional
    from rewire.parts.drop import BelowThreshold, Lowest, SignFlipped
    from rewire.parts.grow import AtRandom, Mix, RandomSign, Strongest, Tiny
    from rewire.parts.schedule import Constant, Cosine, Cubic, Linear, Never, Periodic
    from rewire.parts.start import (
        STARTS,
        Connected,
        Dense,
        ErdosRenyi,
        ErdosRenyiKernel,
        Explicit,
        Scattered,
        Uniform,
        dense,
        erdos_renyi,
        erdos_renyi_kernel,
        explicit,
        uniform,
    )
    from rewire.plain import to_dense
    from rewire.rewirer import Rewirer
    from rewire.shrinking.shrink import shrink
    from rewire.topology import Edit, Top

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "STARTS",
    "AtRandom",
    "BelowThreshold",
    "Connected",
    "Constant",
    "Context",
    "Cosine",
    "Cubic",
    "Dense",
    "Edit",
    "Edited",
    "ErdosRenyi",
    "ErdosRenyiKernel",
    "Explicit",
    "GlobalTop",
    "InPlace",
    "Layer",
    "LayerSpec",
    "Linear",
    "Lowest",
    "Method",
    "Mix",
    "Never",
    "Periodic",
    "Proportional",
    "RandomSign",
    "Rewirer",
    "Rewiring",
    "Scattered",
    "SignFlipped",
    "Signal",
    "Strongest",
    "Tiny",
    "Top",
    "Uniform",
    "deepr",
    "dense",
    "dsr",
    "erdos_renyi",
    "erdos_renyi_kernel",
    "explicit",
    "ggr",
    "gmp",
    "granet",
    "load_sparse",
    "pack",
    "rewire",
    "rigl",
    "set_",
    "set_rigl",
    "shrink",
    "snfs",
    "sparsify",
    "static",
    "to_dense",
    "uniform",
]

_HOMES = {
    "rewire.attach": ["sparsify"],
    "rewire.export": ["load_sparse"],
    "rewire.layer": ["Context", "Edited", "Layer", "LayerSpec", "Signal"],
    "rewire.method": ["Method", "Rewiring", "rewire"],
    "rewire.methods": ["METHODS", "deepr", "dsr", "ggr", "gmp", "granet", "rigl", "set_", "set_rigl", "snfs", "static"],
    "rewire.parts.allocate": ["GlobalTop", "InPlace", "Proportional"],
    "rewire.parts.drop": ["BelowThreshold", "Lowest", "SignFlipped"],
    "rewire.parts.grow": ["AtRandom", "Mix", "RandomSign", "Strongest", "Tiny"],
    "rewire.parts.schedule": ["Constant", "Cosine", "Cubic", "Linear", "Never", "Periodic"],
    "rewire.parts.start": [
        "STARTS",
        "Connected",
        "Dense",
        "ErdosRenyi",
        "ErdosRenyiKernel",
        "Explicit",
        "Scattered",
        "Uniform",
        "dense",
        "erdos_renyi",
        "erdos_renyi_kernel",
        "explicit",
        "uniform",
    ],
    "rewire.inference": ["pack"],
    "rewire.plain": ["to_dense"],
    "rewire.rewirer": ["Rewirer"],
    "rewire.shrinking.shrink": ["shrink"],
    "rewire.topology": ["Edit", "Top"],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rewire' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
