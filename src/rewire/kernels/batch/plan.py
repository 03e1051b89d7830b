"""The CSR arrays that the batch kernels read: the non-zeros of a layer, sorted for each pass (native/conv_csr.hpp).

The backward pass works on the transpose. Kept for each non-zero are its column index and its place in the order of the
positions (``perm``), both in the order of the backward pass. The order of the forward pass is that of the positions: a
1x1 kernel reads them as they are, any other is sorted by tap anew at every pass, which costs little beside the pass
itself.
"""

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rewire.kernels.batch.taps import AxisTaps, backward_taps, forward_taps, tap_offsets, tap_ranks
from rewire.kernels.csr import is_int64, is_sorted, layer_shape
from rewire.kernels.geometry import Geometry, Pair
from rewire.kernels.structures import Axis, ConvCsr, ConvPasses, CsrArrays, ForwardCsr
from rewire.kernels.tuning import COLUMNS_PER_DENSITY, DENSE_ABOVE, FEWEST_COLUMNS, MOST_COLUMNS

Axes = tuple[AxisTaps, AxisTaps]  # y and x


@dataclass(frozen=True)
class _Sizes:
    """Of one pass: channels written, channels read, height and width of what is read, and column blocks."""

    out_channels: int
    in_channels: int
    in_size: Pair
    col_blocks: int


class Plan:
    """Both passes of one layer for inputs of one size."""

    def __init__(self, native: ctypes.CDLL, geometry: Geometry, positions: Tensor, height: int, width: int) -> None:
        self._arrays: list[NDArray[np.int32]] = []  # native code points to them
        self.order: Tensor | None = None  # what sorts the positions, if they are not sorted,
        self.positions: Tensor | None = None  # and the sorted ones then
        if not is_sorted(native, positions):
            positions, self.order = positions.sort()
            self.positions = positions
        self.dense = _dense_passes(geometry, len(positions), height, width)
        self.shape = layer_shape(geometry)

        outputs, inputs, nnz = geometry.shape[0], geometry.inputs, len(positions)
        size, out = (height, width), geometry.output(height, width)
        forward = _Sizes(outputs, inputs, size, _column_blocks(geometry, nnz, geometry.shape[1]))
        backward = _Sizes(inputs, outputs, out, _column_blocks(geometry, nnz, outputs // geometry.groups))
        axes = list(
            zip(geometry.shape[2:], geometry.stride, geometry.padding, geometry.dilation, size, out, strict=True)
        )
        forward_axes: Axes = (forward_taps(*axes[0]), forward_taps(*axes[1]))
        backward_axes: Axes = (backward_taps(*axes[0]), backward_taps(*axes[1]))
        self._build(native, positions, (forward, forward_axes), (backward, backward_axes))
        self._link_forward(geometry, forward, forward_axes, nnz)
        self._link_backward(geometry, backward, backward_axes, nnz)
        self.passes = ConvPasses(
            shape=self.shape,
            forward_csr=self.forward_csr,
            forward=self.forward,
            backward=self.backward,
            backward_tap_rank=self.arrays.backward_tap_rank,
            backward_tap_offset=self.arrays.backward_tap_offset,
            dense_forward=self.dense[0],
            dense_backward=self.dense[1],
        )

    @property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        return sum(array.nbytes for array in self._arrays)

    def _keep(self, array: NDArray[np.integer]) -> int:
        """The address of an array as 32-bit integers, which lives as long as the plan."""
        self._arrays.append(np.ascontiguousarray(array, dtype=np.int32))
        return self._arrays[-1].ctypes.data

    def _empty(self, size: int) -> int:
        return self._keep(np.empty(0 if all(self.dense) else size, np.int32))

    def _build(
        self, native: ctypes.CDLL, positions: Tensor, forward: tuple[_Sizes, Axes], backward: tuple[_Sizes, Axes]
    ) -> None:
        """Allocate the arrays of both passes and let native code fill them."""
        (there, forward_axes), (back, backward_axes) = forward, backward
        taps, nnz = self.shape.taps, len(positions)
        offset = tap_offsets(*backward_axes, width=back.in_size[1], channels=back.in_channels)
        self.arrays = CsrArrays(
            forward_blocks=there.col_blocks,
            backward_blocks=back.col_blocks,
            backward_tap_rank=self._keep(tap_ranks(*backward_axes)[0]),
            backward_tap_offset=self._keep(offset),
            forward_row_ptr=self._empty(there.out_channels * there.col_blocks + 1),
            backward_row_ptr=self._empty(back.col_blocks * back.out_channels * taps + 1),
            backward_col_idx=self._empty(nnz),
            backward_perm=self._empty(nnz),
        )
        offset = tap_offsets(*forward_axes, width=there.in_size[1], channels=there.in_channels)
        self.forward_csr = ForwardCsr(
            col_blocks=there.col_blocks, row_ptr=self.arrays.forward_row_ptr, tap_offset=self._keep(offset)
        )
        if not all(self.dense):
            native.rewire_build_csr(self.shape, positions.data_ptr(), is_int64(positions), nnz, self.arrays)

    def _link_forward(self, geometry: Geometry, sizes: _Sizes, axes: Axes, nnz: int) -> None:
        """The forward pass. Its column indices are the positions, or are made at every pass."""
        rows = np.arange(geometry.shape[0])
        group = rows // (geometry.shape[0] // geometry.groups)
        self.forward = self._conv_csr(sizes, axes, nnz)
        self.forward.row_stride, self.forward.block_stride = sizes.col_blocks * geometry.taps, geometry.taps
        self.forward.row_base = self._keep((group - rows) * geometry.shape[1])
        # The next output pixel reads one column of pixels more, on the right.
        self.forward.prefetch_dx = int(axes[1].tap_offset[-1]) + geometry.stride[1]
        self.forward.prefetch_rows = int(axes[0].tap_offset[-1]) + 1

    def _link_backward(self, geometry: Geometry, sizes: _Sizes, axes: Axes, nnz: int) -> None:
        """The backward pass, over the transpose."""
        arrays = self.arrays
        self.backward = self._conv_csr(sizes, axes, nnz)
        self.backward.row_stride, self.backward.block_stride = geometry.taps, geometry.inputs * geometry.taps
        self.backward.row_ptr, self.backward.col_idx = arrays.backward_row_ptr, arrays.backward_col_idx
        self.backward.perm = arrays.backward_perm
        self.backward.prefetch_dy, self.backward.prefetch_dx = int(axes[0].tap_offset[-1]), 1
        self.backward.prefetch_rows = 1 - self.backward.prefetch_dy

    def _conv_csr(self, sizes: _Sizes, axes: Axes, nnz: int) -> ConvCsr:
        """A pass without what differs between forward and backward."""
        y, x = axes
        ranks, phase_first = tap_ranks(y, x)
        order = np.argsort(ranks.ravel())
        tap_dy, tap_dx = (offset.ravel()[order] for offset in np.meshgrid(y.tap_offset, x.tap_offset, indexing="ij"))
        return ConvCsr(
            out_channels=sizes.out_channels,
            taps=self.shape.taps,
            col_blocks=sizes.col_blocks,
            in_channels=sizes.in_channels,
            in_height=sizes.in_size[0],
            in_width=sizes.in_size[1],
            nnz=nnz,
            y=self._axis(y),
            x=self._axis(x),
            x_phases=len(x.phase_sizes),
            phase_first_tap=self._keep(phase_first),
            phase_width=self._keep(x.phase_sizes),
            tap_dy=self._keep(tap_dy),
            tap_dx=self._keep(tap_dx),
        )

    def _axis(self, taps: AxisTaps) -> Axis:
        return Axis(
            size=len(taps.base),
            base=self._keep(taps.base),
            phase=self._keep(taps.phase),
            tap_begin=self._keep(taps.tap_begin),
            tap_end=self._keep(taps.tap_end),
        )


def _dense_passes(geometry: Geometry, nnz: int, height: int, width: int) -> list[bool]:
    """Whether the forward and the backward pass are computed dense: convolutions of high density."""
    out = geometry.output(height, width)
    convolves = geometry.groups == 1 and min(out[0] * out[1], height * width) >= 4
    return [convolves and nnz > density * geometry.numel for density in DENSE_ABOVE]


def _column_blocks(geometry: Geometry, nnz: int, channels: int) -> int:
    """The number of blocks that the channels read are cut into, so that a block of the activation stays in L2."""
    if geometry.groups > 1:
        return 1
    density = nnz / geometry.numel
    columns = min(max(COLUMNS_PER_DENSITY / max(density, 1e-9), FEWEST_COLUMNS), MOST_COLUMNS)
    return max(1, round(channels * geometry.taps / columns))
