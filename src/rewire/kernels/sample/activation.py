"""One sample: maps as planes, one for each channel, and the steps from map to map (native/planes.hpp).

The twin of a step is what torch computes for the module that it stands for.
"""

import ctypes
import enum
from dataclasses import dataclass
from typing import Any

from torch import Tensor

VECTOR = 16  # floats of the widest register: every plane has room for whole ones
INPUT, OUTPUT = -1, -2  # in place of an address: what the program is given, and where its result goes
_INT, _LONG, _POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


class Kind(enum.IntEnum):
    """What a step does; the order is that of native/planes.hpp."""

    COPY, PHASES, SPARSE, DENSE, SPARSE_DOT, DENSE_DOT, ADD, MAX_POOL, AVERAGE_POOL = range(9)


class _Map(ctypes.Structure):
    _fields_ = (
        *((name, _LONG) for name in ("at", "plane")),
        *((name, _INT) for name in ("channels", "height", "width", "pitch", "first")),
    )


class _Window(ctypes.Structure):
    _fields_ = tuple(
        (name, _INT)
        for name in ("height", "width", "stride_y", "stride_x", "pad_y", "pad_x", "counts_padding", "phases")
    )


class NativeStep(ctypes.Structure):
    """The C structure ``Step`` (native/planes.hpp)."""

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
        return _Map(self.at, self.plane, self.channels, self.height, self.width, self.pitch, self.first)


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

    def native(self) -> NativeStep:
        """As the kernels read it."""
        other = _Map() if self.other is None else self.other.native()
        return NativeStep(
            self.kind, self.limit >= 0, self.limit, self.per_group, self.source.native(), other, self.target.native(),
            _Window(*self.window), *(_address(one) for one in (self.begin, self.offset, self.values, self.bias)),
            self.row_step, self.count, self.group_step,
        )  # fmt: skip


def _address(one: Any) -> int | None:
    if one is None:
        return None
    return one.data_ptr() if isinstance(one, Tensor) else one.ctypes.data
