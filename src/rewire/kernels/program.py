"""One sample: maps as planes, and a network, or a single layer, as a list of steps that run in one native call.

The twin of a step is what torch computes for the module that it stands for.
"""

import ctypes
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rewire.kernels.geometry import Geometry
from rewire.kernels.plan import LayerSizes

VECTOR = 16  # floats of the widest register: every plane has room for whole ones
INPUT, OUTPUT = -1, -2  # in place of an address: what the program is given, and where its result goes
FARTHEST = 1 << 31  # floats that an offset can reach
WORTH_SHARING = 1 << 16  # multiply-adds from which on a second thread gains anything
_INT, _LONG, _POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


class LargeMapError(ValueError):
    """The offsets of a layer's tables would not fit into 32 bits."""


class Kind(enum.IntEnum):
    """What a step does; the order is that of native/planes.hpp."""

    COPY, PHASES, SPARSE, DENSE, SPARSE_DOT, DENSE_DOT, ADD, MAX_POOL, AVERAGE_POOL = range(9)


class _Map(ctypes.Structure):
    _fields_ = (
        *((name, _LONG) for name in ("at", "plane")),
        *((name, _INT) for name in ("channels", "height", "width", "pitch", "first", "unused")),
    )


class _Window(ctypes.Structure):
    _fields_ = tuple(
        (name, _INT)
        for name in ("height", "width", "stride_y", "stride_x", "pad_y", "pad_x", "counts_padding", "phases")
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *(("kind", _INT), ("active", _INT), ("limit", ctypes.c_float), ("per_group", _INT)),
        *((name, _Map) for name in ("source", "other", "target")),
        ("window", _Window),
        *((name, _POINTER) for name in ("begin", "offset", "values", "bias")),
        *((name, _LONG) for name in ("row_step", "count", "group_step")),
    )


@dataclass(eq=False)
class Planes:
    """A map of one sample. ``margin``: rows and columns of zeros around it; a map of one pixel has none.

    The column to the right of a row is the one to the left of the next: one margin serves both.
    """

    channels: int
    height: int
    width: int
    margin: int = 0
    at: int = 0

    def __post_init__(self) -> None:
        if self.pixels == 1:
            self.margin = 0

    @property
    def pixels(self) -> int:
        """Of one channel."""
        return self.height * self.width

    @property
    def pitch(self) -> int:
        """Floats from one row to the next."""
        return self.width + self.margin

    @property
    def first(self) -> int:
        """Floats before the first pixel of a plane."""
        return self.margin * (self.pitch + 1)

    @property
    def plane(self) -> int:
        """Floats of one channel."""
        if self.pixels == 1 or self.at < 0:  # what comes and goes is as torch has it
            return self.pixels
        run = (self.height - 1) * self.pitch + self.width
        return max((self.height + 2 * self.margin) * self.pitch, self.first + -(-run // VECTOR) * VECTOR)

    @property
    def size(self) -> int:
        """Floats of all channels, and what the last one reads beyond its end."""
        beyond = 2 * VECTOR + (self.margin + 1) * (self.pitch + 1)
        return -(-(self.channels * self.plane + beyond) // VECTOR) * VECTOR

    @property
    def form(self) -> tuple[int, ...]:
        """What two maps that can take turns in one place agree on."""
        return self.channels, self.height, self.width, self.margin

    def native(self) -> _Map:
        """As the kernels read it."""
        return _Map(self.at, self.plane, self.channels, self.height, self.width, self.pitch, self.first, 0)


@dataclass(eq=False)
class Step:
    """From one map to another. The tables and weights that it points to live as long as it does."""

    kind: Kind
    source: Planes
    target: Planes
    other: Planes | None = None  # is added to the result
    limit: float = -1.0
    window: tuple[int, ...] = (0,) * 8
    begin: Any = None
    offset: Any = None
    values: Tensor | None = None
    bias: Tensor | None = None
    per_group: int = 1
    row_step: int = 0
    count: int = 0
    group_step: int = 0

    @property
    def work(self) -> int:
        """Multiply-adds, or what takes about as long."""
        if self.values is None:
            return self.target.channels * self.target.pixels
        return self.values.numel() * self.target.pixels

    def native(self) -> _Step:
        """As the kernels read it."""
        other = _Map() if self.other is None else self.other.native()
        return _Step(
            self.kind, self.limit >= 0, self.limit, self.per_group, self.source.native(), other, self.target.native(),
            _Window(*self.window), *(_address(one) for one in (self.begin, self.offset, self.values, self.bias)),
            self.row_step, self.count, self.group_step,
        )  # fmt: skip


def _address(one: Any) -> int | None:
    if one is None:
        return None
    return one.data_ptr() if isinstance(one, Tensor) else one.ctypes.data


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


def is_sorted(native: ctypes.CDLL, positions: Tensor) -> bool:
    """Whether the positions are in the order that the tables need."""
    return bool(native.rewire_is_sorted(positions.data_ptr(), positions.dtype == torch.int64, len(positions)))


def _sparse(native: ctypes.CDLL, step: Step, weights: Weights, reach: np.ndarray) -> None:
    geometry, positions, reach = weights.geometry, weights.positions, reach.astype(np.int32)  # lives until it is read
    assert positions is not None
    assert is_sorted(native, positions)
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
        self.native = (_Step * len(steps))(*(step.native() for step in steps))
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
