"""The steps of one linear layer or convolution on one sample."""

import ctypes
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from rewire.kernels.csr import is_int64, is_sorted, layer_shape
from rewire.kernels.geometry import Geometry
from rewire.kernels.sample.activation import Activation, Kind, Step, Window

MAX_OFFSET = 1 << 31  # floats that a 32-bit column index can address


class LargeActivationError(ValueError):
    """An activation is too large for 32-bit column indices."""


@dataclass(frozen=True)
class Weights:
    """The weights of one layer: values at sorted positions, or all of them if ``positions`` is ``None``."""

    geometry: Geometry
    values: Tensor
    bias: Tensor | None
    positions: Tensor | None = None
    relu_limit: float = -1.0


def margin_for(geometry: Geometry) -> int:
    """The margin that the input and the output of a layer need."""
    return max(geometry.padding) if _keeps_size(geometry) else copy_margin(geometry)


def copy_margin(geometry: Geometry) -> int:
    """The margin that the output of a layer needs if the layer reads a space-to-depth copy, which has wider rows."""
    return ((geometry.shape[3] - 1) * geometry.dilation[1]) // geometry.stride[1]


def _keeps_size(geometry: Geometry) -> bool:
    axes = zip(geometry.shape[2:], geometry.dilation, geometry.padding, strict=True)
    return geometry.stride == (1, 1) and all(dilation * (kernel - 1) == 2 * pad for kernel, dilation, pad in axes)


def layer_steps(
    native: ctypes.CDLL, weights: Weights, source: Activation, margin: int, addend: Activation | None = None
) -> list[Step]:
    """The steps from ``source`` to a new activation with a margin, which the last step writes."""
    geometry = weights.geometry
    target = Activation(geometry.shape[0], *geometry.output(source.height, source.width), margin)
    steps: list[Step] = []
    if _reads_directly(geometry, source, target):
        tap_offset = _tap_offsets(geometry, source.row_stride) + source.origin
    else:
        copy, tap_offset = _space_to_depth(geometry, source, target)
        steps, source = [copy], copy.target
    if source.size >= MAX_OFFSET:
        raise LargeActivationError(
            f"an activation of {source.channels} x {source.height} x {source.width} is too large for one sample"
        )
    layer = Step(Kind.SPARSE_CONV, source, target, addend, weights.relu_limit, bias=weights.bias)
    if weights.positions is None:
        _add_dense_weights(layer, weights, tap_offset)
    else:
        _add_sparse_weights(native, layer, weights, tap_offset)
    return [*steps, layer]


def _reads_directly(geometry: Geometry, source: Activation, target: Activation) -> bool:
    """Whether a layer can read its input where it is: rows of input and output are equally long and padded alike."""
    if target.pixels == 1:
        return geometry.padding == (0, 0)
    has_margin = source.offset >= 0 and source.margin == target.margin >= max(geometry.padding)
    return has_margin and _keeps_size(geometry)


def _tap_offsets(geometry: Geometry, row_stride: int) -> np.ndarray:
    """What each tap reads, in floats from the pixel that is written."""
    dy, dx = (
        np.arange(kernel) * dilation - pad
        for kernel, dilation, pad in zip(geometry.shape[2:], geometry.dilation, geometry.padding, strict=True)
    )
    return (dy[:, None] * row_stride + dx[None, :]).ravel()


def _space_to_depth(geometry: Geometry, source: Activation, target: Activation) -> tuple[Step, np.ndarray]:
    """The step that copies the input, padded, into one plane for each channel and phase; tap offsets in that copy."""
    taps = [np.arange(k) * d for k, d in zip(geometry.shape[2:], geometry.dilation, strict=True)]
    (dy, phase_y), (dx, phase_x) = (np.divmod(tap, step) for tap, step in zip(taps, geometry.stride, strict=True))
    tap_phase = (phase_y[:, None] * geometry.stride[1] + phase_x[None, :]).ravel()
    phases, index = np.unique(tap_phase, return_inverse=True)  # those that some tap reads
    width = max(target.row_stride, target.width + int(dx[-1]))
    assert width == target.row_stride or target.pixels == 1  # input and output rows must be equally long
    copy = Activation(len(phases) * source.channels, target.height + int(dy[-1]), width)
    window = Window(stride=geometry.stride, padding=geometry.padding, phases=len(phases))
    step = Step(Kind.SPACE_TO_DEPTH, source, copy, window=window, col_idx=phases.astype(np.int32))
    tap_offset = index * source.channels * copy.channel_stride + (dy[:, None] * width + dx[None, :]).ravel()
    return step, tap_offset


def _add_sparse_weights(native: ctypes.CDLL, step: Step, weights: Weights, tap_offset: np.ndarray) -> None:
    """Fill in a sparse layer: CSR arrays from its positions."""
    geometry, positions = weights.geometry, weights.positions
    assert positions is not None
    if not is_sorted(native, positions):
        raise ValueError("a one-sample program needs sorted positions: sort them, and the values alike")
    one_pixel = step.source.channel_stride == 1 and geometry.taps == 1 and geometry.groups == 1
    as_they_are = one_pixel and not is_int64(positions)  # the positions of a row are what it reads
    step.kind = Kind.SPARSE_DOT if step.target.pixels == 1 else Kind.SPARSE_CONV
    step.values, step.row_size = weights.values, geometry.shape[1] if as_they_are else 0
    step.row_ptr = np.empty(geometry.shape[0] + 1, np.int32)
    step.col_idx = positions if as_they_are else np.empty(len(positions), np.int32)
    offsets = tap_offset.astype(np.int32)  # named, so that it lives until it is read
    native.rewire_sample_build_csr(
        layer_shape(geometry), positions.data_ptr(), is_int64(positions), len(positions),
        offsets.ctypes.data, step.source.channel_stride,
        step.row_ptr.ctypes.data, None if as_they_are else step.col_idx.ctypes.data,
    )  # fmt: skip


def _add_dense_weights(step: Step, weights: Weights, tap_offset: np.ndarray) -> None:
    """Fill in a dense layer: what each column of its weight reads."""
    geometry, source = weights.geometry, step.source
    step.kind = Kind.DENSE_DOT if step.target.pixels == 1 else Kind.DENSE_CONV
    step.values = weights.values
    step.outputs_per_group, step.columns = geometry.shape[0] // geometry.groups, geometry.shape[1] * geometry.taps
    step.group_stride = geometry.shape[1] * source.channel_stride
    is_contiguous = step.kind == Kind.DENSE_DOT and source.channel_stride == geometry.taps == 1
    if not is_contiguous:
        channel_offset = np.arange(geometry.shape[1])[:, None] * source.channel_stride
        step.col_idx = (channel_offset + tap_offset[None, :]).ravel().astype(np.int32)
