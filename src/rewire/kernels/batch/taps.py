"""Which taps of the kernel each pixel of a pass uses, along one axis.

A tap is one position of the kernel. The forward pass writes outputs and reads inputs; the backward pass writes the
gradient of the input and reads the gradient of the output. With a stride, a pixel of the backward pass is reached by
every stride-th tap only: those of its phase.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class AxisTaps:
    """One axis of a pass. Taps are numbered within their phase."""

    base: Integers  # per pixel written: the pixel read by a tap of offset zero; it may lie outside
    phase: Integers  # per pixel written
    tap_begin: Integers  # per pixel written: the taps of its phase that read inside are tap_begin <= tap < tap_end
    tap_end: Integers
    tap_offset: Integers  # per tap of the kernel: pixels from the base to what is read
    tap_phase: Integers  # per tap of the kernel
    phase_sizes: Integers  # per phase: its taps


def forward_taps(kernel: int, stride: int, pad: int, dilation: int, size: int, out: int) -> AxisTaps:
    """Output ``o`` reads the inputs ``o * stride - pad + tap * dilation`` that exist: one phase.

    >>> taps = forward_taps(3, stride=1, pad=1, dilation=1, size=4, out=4)
    >>> taps.tap_begin.tolist(), taps.tap_end.tolist()  # the first output has no tap 0, the last no tap 2
    ([1, 0, 0, 0], [3, 3, 3, 2])
    """
    offset = np.arange(kernel) * dilation
    base = np.arange(out) * stride - pad
    begin, end = np.searchsorted(offset, -base), np.searchsorted(offset, size - base)
    return AxisTaps(
        base=base,
        phase=np.zeros(out, np.int64),
        tap_begin=begin,
        tap_end=end,
        tap_offset=offset,
        tap_phase=np.zeros(kernel, np.int64),
        phase_sizes=np.array([kernel]),
    )


def backward_taps(kernel: int, stride: int, pad: int, dilation: int, size: int, out: int) -> AxisTaps:
    """Input ``i`` reads the outputs ``(i + pad - tap * dilation) / stride`` that are whole numbers and exist.

    >>> taps = backward_taps(3, stride=2, pad=1, dilation=1, size=4, out=2)
    >>> taps.tap_phase.tolist(), taps.phase.tolist()  # inputs 0 and 2 are read through tap 1 alone
    ([0, 1, 0], [1, 0, 1, 0])
    """
    back, tap_phase = np.divmod(np.arange(kernel) * dilation, stride)
    base, phase = np.divmod(np.arange(size) + pad, stride)
    begin, end = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for number in range(stride):
        pixels, offset = phase == number, back[tap_phase == number]
        begin[pixels] = np.searchsorted(offset, base[pixels] - out, side="right")
        end[pixels] = np.searchsorted(offset, base[pixels], side="right")
    return AxisTaps(
        base=base,
        phase=phase,
        tap_begin=begin,
        tap_end=end,
        tap_offset=-back,
        tap_phase=tap_phase,
        phase_sizes=np.bincount(tap_phase, minlength=stride),
    )


def tap_ranks(y: AxisTaps, x: AxisTaps) -> tuple[Integers, Integers]:
    """The rank of every tap [kernel height, kernel width] in the order of phases, and the first rank of each phase."""
    sizes = np.multiply.outer(y.phase_sizes, x.phase_sizes)
    first = np.concatenate([[0], np.cumsum(sizes.ravel())[:-1]]).reshape(sizes.shape)
    within_y, within_x = (
        np.array([(axis.tap_phase[:tap] == phase).sum() for tap, phase in enumerate(axis.tap_phase)]) for axis in (y, x)
    )
    phase_y, phase_x = np.meshgrid(y.tap_phase, x.tap_phase, indexing="ij")
    ranks = first[phase_y, phase_x] + within_y[:, None] * x.phase_sizes[phase_x] + within_x[None, :]
    return ranks, first.ravel()


def tap_offsets(y: AxisTaps, x: AxisTaps, width: int, channels: int) -> Integers:
    """What each tap (row-major) adds to a column index: channels from the base pixel to the one that it reads."""
    return ((y.tap_offset[:, None] * width + x.tap_offset[None, :]) * channels).ravel()
