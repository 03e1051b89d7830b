"""The tables that the native kernels walk through: non-zeros sorted for the forward and for the backward pass.

A non-zero's place is (block of channels read, row written, tap, channel read). Its offset says how many channels lie
between the pixel where a gather begins and what it reads, so that borders only have to leave out taps.
"""

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rewire.kernels.geometry import Geometry

Integers = NDArray[np.int64]

_POINTER = ctypes.c_void_p


class _Axis(ctypes.Structure):
    _fields_ = (("size", ctypes.c_int32), *((name, _POINTER) for name in ("base", "phase", "low", "high")))


class Gather(ctypes.Structure):
    """The C structure of the same name (native/gather.hpp); ``held`` keeps its arrays alive."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("rows", "taps", "blocks", "channels", "width")),
        ("nnz", ctypes.c_int64),
        ("y", _Axis),
        ("x", _Axis),
        ("phases_x", ctypes.c_int32),
        *((name, _POINTER) for name in ("first_tap", "across", "begin", "offset", "index")),
    )
    held: list[NDArray[np.int32]]


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


@dataclass(frozen=True)
class Plan:
    """Both directions of one layer on maps of one size."""

    forward: Gather
    backward: Gather

    @property
    def nbytes(self) -> int:
        """Memory of all tables."""
        return sum(array.nbytes for side in (self.forward, self.backward) for array in side.held)


def plan(geometry: Geometry, positions: Integers, height: int, width: int) -> Plan:
    """Sort the non-zeros at flat ``positions`` (any order) for both passes over maps of this size."""
    out = geometry.output(height, width)
    rows, rest = np.divmod(positions, geometry.shape[1] * geometry.taps)
    column, tap = np.divmod(rest, geometry.taps)
    channel = rows // (geometry.shape[0] // geometry.groups) * geometry.shape[1] + column
    taps = np.divmod(tap, geometry.shape[3])
    axes = [
        (k, s, p, d)
        for k, s, p, d in zip(geometry.shape[2:], geometry.stride, geometry.padding, geometry.dilation, strict=True)
    ]
    ahead = [_forward_line(*axis, i, o) for axis, i, o in zip(axes, (height, width), out, strict=True)]
    back = [_backward_line(*axis, i, o) for axis, i, o in zip(axes, (height, width), out, strict=True)]
    blocks = (_blocks(geometry, len(positions), n) for n in (geometry.shape[1], geometry.shape[0] // geometry.groups))
    sides = (geometry.shape[0], geometry.inputs)
    return Plan(
        _gather(ahead, taps, rows, channel, sides, width, next(blocks)),
        _gather(back, taps, channel, rows, sides[::-1], out[1], next(blocks)),
    )


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


def _blocks(geometry: Geometry, nnz: int, channels: int) -> int:
    """How many pieces the channels read are cut into, so that one piece of the map stays in the second cache."""
    if geometry.groups > 1:
        return 1
    density = nnz / geometry.numel
    return max(1, round(channels * geometry.taps / min(max(50 / max(density, 1e-9), 400), 2304)))


def _tap_order(lines: list[Line]) -> tuple[Integers, NDArray[np.int64]]:
    """The place of every tap (flat, row-major) when taps are sorted by phase, and where each phase begins."""
    y, x = lines
    sizes = np.multiply.outer(y.counts, x.counts)
    first = np.concatenate([[0], np.cumsum(sizes.ravel())[:-1]]).reshape(sizes.shape)
    within = [np.array([(line.tap_phase[:t] == p).sum() for t, p in enumerate(line.tap_phase)]) for line in lines]
    phase_y, phase_x = np.meshgrid(y.tap_phase, x.tap_phase, indexing="ij")
    place = first[phase_y, phase_x] + within[0][:, None] * x.counts[phase_x] + within[1][None, :]
    return place, first.ravel()


def _gather(
    lines: list[Line],
    taps: tuple[Integers, Integers],
    rows: Integers,
    channel: Integers,
    sides: tuple[int, int],
    width: int,
    blocks: int,
) -> Gather:
    """Sort the non-zeros for one direction; ``width`` and ``sides[1]`` are of the map that is read."""
    y, x = lines
    place, first = _tap_order(lines)
    count = place.size
    cell = ((channel * blocks // sides[1]) * sides[0] + rows) * count + place[taps]
    order = np.argsort(cell * sides[1] + channel, kind="stable")
    begin = np.concatenate([[0], np.cumsum(np.bincount(cell, minlength=blocks * sides[0] * count))])
    offset = (y.reach[taps[0]] * width + x.reach[taps[1]]) * sides[1] + channel
    held: list[NDArray[np.int32]] = []

    def pointer(array: NDArray[np.int64]) -> int:
        held.append(np.ascontiguousarray(array, dtype=np.int32))
        return held[-1].ctypes.data

    def axis(line: Line) -> _Axis:
        return _Axis(len(line.base), *(pointer(a) for a in (line.base, line.phase, line.low, line.high)))

    gather = Gather(
        sides[0], count, blocks, sides[1], width, len(rows), axis(y), axis(x), len(x.counts),
        *(pointer(a) for a in (first, x.counts, begin, offset[order], order)),
    )  # fmt: skip
    gather.held = held
    return gather
