"""What the CSR arrays of batches and of single samples have in common: checked, sorted positions."""

import ctypes

import torch
from torch import Tensor

from rewire.kernels.geometry import Geometry
from rewire.kernels.structures import LayerShape


def layer_shape(geometry: Geometry) -> LayerShape:
    """The dense shape of a layer as native code reads it."""
    return LayerShape(
        out_channels=geometry.shape[0], in_channels=geometry.shape[1], taps=geometry.taps, groups=geometry.groups
    )


def is_int64(positions: Tensor) -> bool:
    """Whether positions are 64-bit integers; otherwise they are 32-bit ones."""
    return positions.dtype == torch.int64


def is_sorted(native: ctypes.CDLL, positions: Tensor) -> bool:
    """Whether positions increase strictly, as the CSR arrays need them."""
    return bool(native.rewire_is_sorted(positions.data_ptr(), is_int64(positions), len(positions)))


def refuse_outside(geometry: Geometry, positions: Tensor) -> None:
    """Raise if a position lies outside of the weight, or is no integer of a known size: native code trusts them."""
    if positions.dtype not in (torch.int32, torch.int64):
        raise TypeError(
            f"positions must be 32-bit or 64-bit integers, not {positions.dtype}: convert a packed model with "
            "to(dtype), which leaves them alone, not with type(dtype)"
        )
    if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < geometry.numel:
        extent = f"{positions.min()} to {positions.max()}"
        raise ValueError(f"positions must lie in [0, {geometry.numel}): these go from {extent}")
