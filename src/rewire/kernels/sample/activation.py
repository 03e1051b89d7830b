"""Planar activations of one sample, and the steps from one to the next (native/sample_program.hpp).

The reference of a step is what torch computes for the module that it stands for.
"""

import enum
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rewire.kernels import structures

VECTOR = 16  # floats of the widest register: every plane has room for whole vectors
INPUT, OUTPUT = -1, -2  # instead of an offset: the input of the program, and its output


class Kind(enum.IntEnum):
    """What a step does, in the order of ``StepKind`` in native/sample_program.hpp."""

    COPY, SPACE_TO_DEPTH, SPARSE_CONV, DENSE_CONV, SPARSE_DOT, DENSE_DOT, ADD, MAX_POOL, AVG_POOL = range(9)


@dataclass(eq=False)
class Activation:
    """An activation of one sample in planar (CHW) layout: one plane for each channel.

    ``margin``: rows and columns of zeros around the pixels of a plane; a plane of one pixel has none. The column to the
    right of a row is the column to the left of the next row: one margin serves both. ``offset``: where it is in the
    memory of the program, or ``INPUT`` or ``OUTPUT``.
    """

    channels: int
    height: int
    width: int
    margin: int = 0
    offset: int = 0

    def __post_init__(self) -> None:
        if self.pixels == 1:
            self.margin = 0

    @property
    def pixels(self) -> int:
        """Pixels of one channel."""
        return self.height * self.width

    @property
    def row_stride(self) -> int:
        """Floats from one row to the next."""
        return self.width + self.margin

    @property
    def origin(self) -> int:
        """Floats before the first pixel of a plane."""
        return self.margin * (self.row_stride + 1)

    @property
    def channel_stride(self) -> int:
        """Floats from one plane to the next."""
        if self.pixels == 1 or self.offset < 0:  # the input and the output of a program are contiguous tensors
            return self.pixels
        span = (self.height - 1) * self.row_stride + self.width
        return max((self.height + 2 * self.margin) * self.row_stride, self.origin + -(-span // VECTOR) * VECTOR)

    @property
    def size(self) -> int:
        """Floats of all planes, and of what vectors read beyond the end of the last one."""
        beyond = 2 * VECTOR + (self.margin + 1) * (self.row_stride + 1)
        return -(-(self.channels * self.channel_stride + beyond) // VECTOR) * VECTOR

    @property
    def layout(self) -> tuple[int, ...]:
        """Activations with equal layouts can use the same memory one after the other."""
        return self.channels, self.height, self.width, self.margin

    def native(self) -> structures.Activation:
        """The structure that native code reads."""
        return structures.Activation(
            offset=self.offset, channel_stride=self.channel_stride, channels=self.channels,
            height=self.height, width=self.width, row_stride=self.row_stride, origin=self.origin,
        )  # fmt: skip


@dataclass(frozen=True)
class Window:
    """The window of a pooling step, or the stride and padding of a space-to-depth step."""

    kernel: tuple[int, int] = (0, 0)
    stride: tuple[int, int] = (0, 0)
    padding: tuple[int, int] = (0, 0)
    count_padding: bool = False
    phases: int = 0

    def native(self) -> structures.StepWindow:
        """The structure that native code reads."""
        return structures.StepWindow(
            height=self.kernel[0], width=self.kernel[1], stride_y=self.stride[0], stride_x=self.stride[1],
            pad_y=self.padding[0], pad_x=self.padding[1], count_padding=self.count_padding, phases=self.phases,
        )  # fmt: skip


@dataclass(eq=False)
class Step:
    """One step from ``source`` to ``target``. The arrays that native code reads live as long as the step does."""

    kind: Kind
    source: Activation
    target: Activation
    addend: Activation | None = None  # is added to the result
    relu_limit: float = -1.0  # upper limit of the ReLU behind; below zero: no ReLU
    window: Window = Window()
    row_ptr: Any = None
    col_idx: Any = None  # space to depth: the phases
    values: Tensor | None = None
    bias: Tensor | None = None
    outputs_per_group: int = 1
    row_size: int = 0  # sparse dot: nonzero if col_idx are flat positions, where row r starts at r * row_size
    columns: int = 0  # dense: weights of a row
    group_stride: int = 0  # dense: floats from the input of one group to that of the next

    @property
    def work(self) -> int:
        """Multiply-adds, or as many operations that take about as long."""
        if self.values is None:
            return self.target.channels * self.target.pixels
        return self.values.numel() * self.target.pixels

    def native(self) -> structures.Step:
        """The structure that native code reads."""
        return structures.Step(
            kind=self.kind, relu=self.relu_limit >= 0, limit=self.relu_limit, outputs_per_group=self.outputs_per_group,
            source=self.source.native(), target=self.target.native(), window=self.window.native(),
            addend=structures.Activation() if self.addend is None else self.addend.native(),
            row_ptr=_address(self.row_ptr), col_idx=_address(self.col_idx),
            values=_address(self.values), bias=_address(self.bias),
            row_size=self.row_size, columns=self.columns, group_stride=self.group_stride,
        )  # fmt: skip


def _address(array: Any) -> int | None:
    """The address of a tensor or of a NumPy array."""
    if array is None:
        return None
    return array.data_ptr() if isinstance(array, Tensor) else array.ctypes.data
