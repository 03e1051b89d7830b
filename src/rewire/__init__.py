"""Rewire: dynamic sparse training for PyTorch."""

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
from rewire.rewirer import Rewirer
from rewire.sparsify import sparsify
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
    "rewire",
    "rigl",
    "set_",
    "set_rigl",
    "snfs",
    "sparsify",
    "static",
    "uniform",
]
