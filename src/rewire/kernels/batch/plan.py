"""The tables that the native kernels walk through: non-zeros sorted for the forward and for the backward pass.

A non-zero's place is (block of channels read, row written, tap, channel read). Its offset says how many channels lie
between the pixel where a gather begins and what it reads, so that borders only have to leave out taps.

What is kept for each non-zero is its offset and its index in the backward order. The forward order is that of the
positions: one tap reads them as they are, more are sorted anew at every pass, which costs next to nothing beside it.
"""

import ctypes
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewire.kernels.geometry import Geometry

Integers = NDArray[np.int64]
Table = NDArray[np.int32]

# Above these shares of weights, blocks of rows are computed with their zeros: forward, and backward, where the kernel
# that skips them loads every gradient once for two products.
DENSE = (0.45, 0.7)
_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


class LayerSizes(ctypes.Structure):
    """The C structure ``Layer`` (native/tables.hpp)."""

    _fields_ = tuple((name, _INT) for name in ("outputs", "inputs", "taps", "groups"))


class _Forward(ctypes.Structure):
    _fields_ = (("blocks", _INT), ("begin", _POINTER), ("reach", _POINTER))


class _Tables(ctypes.Structure):
    _fields_ = (
        ("forward_blocks", _INT),
        ("backward_blocks", _INT),
        *((name, _POINTER) for name in ("backward_place", "backward_reach", "forward_begin")),
        *((name, _POINTER) for name in ("backward_begin", "backward_offset", "backward_index")),
    )


class _Axis(ctypes.Structure):
    _fields_ = (("size", _INT), *((name, _POINTER) for name in ("base", "phase", "low", "high")))


class Gather(ctypes.Structure):
    """The C structure of the same name (native/gather.hpp)."""

    _fields_ = (
        *((name, _INT) for name in ("rows", "taps", "blocks", "channels", "height", "width")),
        ("nnz", _LONG),
        ("y", _Axis),
        ("x", _Axis),
        ("phases_x", _INT),
        *((name, _POINTER) for name in ("first_tap", "across", "tap_y", "tap_x")),
        *((name, _LONG) for name in ("row_step", "block_step")),
        *((name, _POINTER) for name in ("begin", "offset", "shift", "index")),
        *((name, _INT) for name in ("ahead_y", "ahead_x", "ahead_rows")),
    )


@dataclass(frozen=True)
class Line:
    """One axis: which taps each pixel written meets, and the pixel of the other map that it reads through them."""

    base: Integers  # per pixel written
    phase: Integers
    low: Integers
    high: Integers
    reach: Integers  # per tap: pixels between the base and what is read
    tap_phase: Integers
    counts: Integers  # taps of each phase


class Plan:
    """Both directions of one layer on maps of one size."""

    def __init__(self, native: ctypes.CDLL, geometry: Geometry, positions: Tensor, height: int, width: int) -> None:
        self._held: list[NDArray[np.int32]] = []
        self.order: Tensor | None = None  # what sorts the positions, where they are not sorted,
        self.positions: Tensor | None = None  # and these then
        if not is_sorted(native, positions):
            self.positions, self.order = positions, _ = positions.sort()
        outputs, inputs, taps, nnz = geometry.shape[0], geometry.inputs, geometry.taps, len(positions)
        out = geometry.output(height, width)
        wants = geometry.groups == 1 and min(out[0] * out[1], height * width) >= 4
        self.dense = [wants and nnz > share * geometry.numel for share in DENSE]  # forward, backward
        axes = list(zip(geometry.shape[2:], geometry.stride, geometry.padding, geometry.dilation, strict=True))
        ahead = [_forward_line(*axis, i, o) for axis, i, o in zip(axes, (height, width), out, strict=True)]
        back = [_backward_line(*axis, i, o) for axis, i, o in zip(axes, (height, width), out, strict=True)]
        blocks = [_blocks(geometry, nnz, n) for n in (geometry.shape[1], outputs // geometry.groups)]
        sizes = (outputs * blocks[0] + 1, blocks[1] * inputs * taps + 1, nnz, nnz)
        tables = [np.empty(0 if all(self.dense) else size, np.int32) for size in sizes]
        place = _tap_order(back)[0]
        reach = [_reach(lines, line, n) for lines, line, n in ((ahead, width, inputs), (back, out[1], outputs))]
        self.layer = LayerSizes(outputs, geometry.shape[1], taps, geometry.groups)
        self.tables = _Tables(
            *blocks, self._keep(place), self._keep(reach[1]), *(self._keep(table) for table in tables)
        )
        self.forward_tables = _Forward(blocks[0], tables[0].ctypes.data, self._keep(reach[0]))
        if not all(self.dense):
            wide = positions.dtype == torch.int64
            native.rewire_tables(
                *(ctypes.addressof(self.layer), positions.data_ptr(), wide, nnz, ctypes.addressof(self.tables))
            )
        shift = np.arange(outputs) // (outputs // geometry.groups) - np.arange(outputs)
        tall, broad = (int(line.reach[-1]) for line in ahead)
        self.forward = self._gather(
            ahead, (outputs, taps, blocks[0], inputs, height, width, nnz),
            (blocks[0] * taps, taps), (None, None, self._keep(shift * geometry.shape[1]), None),
            (0, broad + geometry.stride[1], tall + 1),
        )  # fmt: skip
        begin, offset, index = (table.ctypes.data for table in tables[1:])
        top = int(back[0].reach[-1])
        self.backward = self._gather(
            back, (inputs, taps, blocks[1], outputs, *out, nnz),
            (taps, inputs * taps), (begin, offset, None, index), (top, 1, 1 - top),
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Memory of all tables."""
        return sum(array.nbytes for array in self._held)

    def _keep(self, array: NDArray[np.integer]) -> int:
        self._held.append(np.ascontiguousarray(array, dtype=np.int32))
        return self._held[-1].ctypes.data

    def _gather(
        self,
        lines: list[Line],
        sizes: tuple[int, ...],
        steps: tuple[int, int],
        tables: tuple[int | None, ...],
        ahead: tuple[int, int, int],
    ) -> Gather:
        axes = [
            _Axis(len(line.base), *(self._keep(a) for a in (line.base, line.phase, line.low, line.high)))
            for line in lines
        ]
        counts, (place, first) = lines[1].counts, _tap_order(lines)
        order = np.argsort(place.ravel())
        reached = [reach.ravel()[order] for reach in np.meshgrid(*(line.reach for line in lines), indexing="ij")]
        own = (self._keep(array) for array in (first, counts, *reached))
        return Gather(*sizes, *axes, len(counts), *own, *steps, *tables, *ahead)


def _reach(lines: list[Line], width: int, channels: int) -> Integers:
    """What each tap (row-major) adds to an offset."""
    y, x = lines
    return ((y.reach[:, None] * width + x.reach[None, :]) * channels).ravel()


def _forward_line(kernel: int, stride: int, pad: int, dilation: int, size: int, out: int) -> Line:
    """Output ``o`` reads the inputs ``o * stride - pad + tap * dilation`` that exist."""
    reach = np.arange(kernel) * dilation
    base = np.arange(out) * stride - pad
    low, high = np.searchsorted(reach, -base), np.searchsorted(reach, size - base)
    zeros = np.zeros(out, np.int64)
    return Line(base, zeros, low, high, reach, np.zeros(kernel, np.int64), np.array([kernel]))


def _backward_line(kernel: int, stride: int, pad: int, dilation: int, size: int, out: int) -> Line:
    """Input ``i`` reads the outputs ``(i + pad - tap * dilation) / stride`` that are whole and exist."""
    back, tap_phase = np.divmod(np.arange(kernel) * dilation, stride)
    base, phase = np.divmod(np.arange(size) + pad, stride)
    low, high = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for one in range(stride):
        here, reach = phase == one, back[tap_phase == one]
        low[here] = np.searchsorted(reach, base[here] - out, side="right")
        high[here] = np.searchsorted(reach, base[here], side="right")
    return Line(base, phase, low, high, -back, tap_phase, np.bincount(tap_phase, minlength=stride))


def is_sorted(native: ctypes.CDLL, positions: Tensor) -> bool:
    """Whether the positions are in the order that the tables need."""
    return bool(native.rewire_is_sorted(positions.data_ptr(), positions.dtype == torch.int64, len(positions)))


def _blocks(geometry: Geometry, nnz: int, channels: int) -> int:
    """How many pieces the channels read are cut into, so that one piece of the map stays in the second cache."""
    if geometry.groups > 1:
        return 1
    density = nnz / geometry.numel
    return max(1, round(channels * geometry.taps / min(max(50 / max(density, 1e-9), 400), 1536)))


def _tap_order(lines: list[Line]) -> tuple[Integers, NDArray[np.int64]]:
    """The place of every tap (flat, row-major) when taps are sorted by phase, and where each phase begins."""
    y, x = lines
    sizes = np.multiply.outer(y.counts, x.counts)
    first = np.concatenate([[0], np.cumsum(sizes.ravel())[:-1]]).reshape(sizes.shape)
    within = [np.array([(line.tap_phase[:t] == p).sum() for t, p in enumerate(line.tap_phase)]) for line in lines]
    phase_y, phase_x = np.meshgrid(y.tap_phase, x.tap_phase, indexing="ij")
    place = first[phase_y, phase_x] + within[0][:, None] * x.counts[phase_x] + within[1][None, :]
    return place, first.ravel()
