"""A network, or a single layer, as a list of steps for one sample that run in one native call."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rewire.kernels.batch.plan import LayerSizes, is_sorted
from rewire.kernels.geometry import Geometry
from rewire.kernels.sample.activation import Kind, NativeStep, Planes, Step

FARTHEST = 1 << 31  # floats that an offset can reach
WORTH_SHARING = 1 << 16  # multiply-adds from which on a second thread gains anything


class LargeMapError(ValueError):
    """The offsets of a layer's tables would not fit into 32 bits."""


@dataclass(frozen=True)
class Weights:
    """Of one layer: values at sorted positions, or all of them if there are no positions."""

    geometry: Geometry
    values: Tensor
    bias: Tensor | None
    positions: Tensor | None = None
    limit: float = -1.0


def margin_for(geometry: Geometry) -> int:
    """Rows and columns of zeros that maps need around them for a layer to read and write them."""
    return max(geometry.padding) if _keeps_size(geometry) else copy_margin(geometry)


def copy_margin(geometry: Geometry) -> int:
    """The same for a layer that reads a copy of its map: columns of the copy beyond those of what is written."""
    return ((geometry.shape[3] - 1) * geometry.dilation[1]) // geometry.stride[1]


def _keeps_size(geometry: Geometry) -> bool:
    axes = zip(geometry.shape[2:], geometry.dilation, geometry.padding, strict=True)
    return geometry.stride == (1, 1) and all(far * (kernel - 1) == 2 * pad for kernel, far, pad in axes)


def layer_steps(
    native: ctypes.CDLL, weights: Weights, source: Planes, margin: int, other: Planes | None = None
) -> list[Step]:
    """A linear layer or convolution, from a map to a new one with ``margin`` around it; the last step writes it."""
    geometry = weights.geometry
    target = Planes(geometry.shape[0], *geometry.output(source.height, source.width), margin)
    before: list[Step] = []
    if _reads_directly(geometry, source, target):
        reach = _taps(geometry, source.pitch) + source.first
    else:
        before, reach, source = _phases(geometry, source, target)
    if source.size >= FARTHEST:
        raise LargeMapError(
            f"a map of {source.channels} x {source.height} x {source.width} is too large for one sample"
        )
    step = Step(Kind.SPARSE, source, target, other, weights.limit, bias=weights.bias)
    if weights.positions is None:
        _dense(step, weights, reach)
    else:
        _sparse(native, step, weights, reach)
    return [*before, step]


def _reads_directly(geometry: Geometry, source: Planes, target: Planes) -> bool:
    """Whether a layer can do without a copy of its input."""
    if target.pixels == 1:
        return geometry.padding == (0, 0)
    known = source.at >= 0 and source.margin == target.margin >= max(geometry.padding)
    return known and _keeps_size(geometry)


def _taps(geometry: Geometry, pitch: int) -> np.ndarray:
    down, right = (
        np.arange(kernel) * far - pad
        for kernel, far, pad in zip(geometry.shape[2:], geometry.dilation, geometry.padding, strict=True)
    )
    return (down[:, None] * pitch + right[None, :]).ravel()


def _phases(geometry: Geometry, source: Planes, target: Planes) -> tuple[list[Step], np.ndarray, Planes]:
    """A copy of the map with the border that the layer needs, one for each step of its stride."""
    taps = [np.arange(k) * d for k, d in zip(geometry.shape[2:], geometry.dilation, strict=True)]
    (down, py), (right, px) = (np.divmod(tap, step) for tap, step in zip(taps, geometry.stride, strict=True))
    phase = (py[:, None] * geometry.stride[1] + px[None, :]).ravel()
    used, index = np.unique(phase, return_inverse=True)
    broad = max(target.pitch, target.width + int(right[-1]))
    assert broad == target.pitch or target.pixels == 1  # else a run along the one is none along the other
    copies = Planes(len(used) * source.channels, target.height + int(down[-1]), broad)
    window = (0, 0, *geometry.stride, *geometry.padding, 0, len(used))
    step = Step(Kind.PHASES, source, copies, window=window, offset=used.astype(np.int32))
    reach = index * source.channels * copies.plane + (down[:, None] * broad + right[None, :]).ravel()
    return [step], reach, copies


def _sparse(native: ctypes.CDLL, step: Step, weights: Weights, reach: np.ndarray) -> None:
    geometry, positions, reach = weights.geometry, weights.positions, reach.astype(np.int32)  # lives until it is read
    assert positions is not None
    if not is_sorted(native, positions):
        raise ValueError("the tables of one sample need positions in order")
    flat = step.source.plane == 1 and geometry.taps == 1 and geometry.groups == 1 and positions.dtype == torch.int32
    step.values, step.row_step = weights.values, geometry.shape[1] if flat else 0
    step.begin = np.empty(geometry.shape[0] + 1, np.int32)
    step.offset = positions if flat else np.empty(len(positions), np.int32)  # positions of a row: what it reads
    layer = LayerSizes(geometry.shape[0], geometry.shape[1], geometry.taps, geometry.groups)
    native.rewire_program_tables(
        ctypes.addressof(layer), positions.data_ptr(), positions.dtype == torch.int64, len(positions),
        reach.ctypes.data, step.source.plane, step.begin.ctypes.data, None if flat else step.offset.ctypes.data,
    )  # fmt: skip
    if step.target.pixels == 1:
        step.kind = Kind.SPARSE_DOT


def _dense(step: Step, weights: Weights, reach: np.ndarray) -> None:
    geometry, source = weights.geometry, step.source
    step.kind = Kind.DENSE_DOT if step.target.pixels == 1 else Kind.DENSE
    step.values = weights.values
    step.per_group, step.count = geometry.shape[0] // geometry.groups, geometry.shape[1] * geometry.taps
    step.group_step = geometry.shape[1] * source.plane
    if not (step.kind == Kind.DENSE_DOT and source.plane == geometry.taps == 1):
        step.offset = (np.arange(geometry.shape[1])[:, None] * source.plane + reach[None, :]).ravel().astype(np.int32)


class Program:
    """Steps with the memory of their maps. The first reads what the program is given, the last writes its result."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self.size = _lay_out(self.steps)
        self.native = (NativeStep * len(steps))(*(step.native() for step in steps))
        self.is_shared = sum(step.work for step in steps) >= WORTH_SHARING

    @property
    def nbytes(self) -> int:
        """Memory of the tables."""
        tables = [one for step in self.steps for one in (step.begin, step.offset) if isinstance(one, np.ndarray)]
        return sum(one.nbytes for one in tables)

    def run(self, library: ctypes.CDLL, x: Tensor, y: Tensor, own: Tensor, steps: Any = None) -> None:
        """From ``x`` to ``y``, both contiguous.

        ``own``: ``size`` floats, zeros at first unless there is just one layer. ``steps``: others than ``native``.
        """
        steps = self.native if steps is None else steps
        threads = torch.get_num_threads() if self.is_shared else 1
        library.rewire_program(ctypes.addressof(steps), len(steps), x.data_ptr(), y.data_ptr(), own.data_ptr(), threads)


def _lay_out(steps: Sequence[Step]) -> int:
    """Give every map its place. Maps of one form take turns: the zeros around them stay zeros."""
    last = {read: at for at, step in enumerate(steps) for read in (step.source, step.other) if read is not None}
    free: dict[tuple[int, ...], list[int]] = {}
    size = 0
    for at, step in enumerate(steps):
        if step.target.at >= 0:
            places = free.setdefault(step.target.form, [])
            step.target.at = places.pop() if places else size
            size = max(size, step.target.at + step.target.size)
        for read in {step.source, step.other} - {None}:
            if read is not None and last[read] == at and read.at >= 0:
                free.setdefault(read.form, []).append(read.at)
    return size
