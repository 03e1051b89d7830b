"""The CSR arrays of a token-major linear layer, in both directions (native/linear_csr.hpp).

Positions are sorted, so one direction reads them as they are; for the other one column indices and their places in the
order of the positions are kept. A weight of shape (outputs, inputs), as in ``nn.Linear``, is read as it is in the
forward pass; one of shape (inputs, outputs), as in GPT-2's ``Conv1D``, in the backward pass.
"""

import ctypes

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rewire.kernels.csr import is_int64, is_sorted, layer_shape
from rewire.kernels.geometry import Geometry
from rewire.kernels.structures import CsrArrays, CsrRows, LinearCsr


class LinearPlan:
    """Both passes of a linear layer whose weight has the shape (outputs, inputs)."""

    inputs_first = False

    def __init__(self, native: ctypes.CDLL, geometry: Geometry, positions: Tensor, height: int, width: int) -> None:
        assert (height, width) == (1, 1)
        self.order: Tensor | None = None  # what sorts the positions, if they are not sorted
        if not is_sorted(native, positions):
            positions, self.order = positions.sort()
        self._positions = positions if self.order is not None else None  # native code points to them
        rows, columns, nnz = geometry.shape[0], geometry.shape[1], len(positions)
        self._row_ptr, self._transposed_row_ptr = np.empty(rows + 1, np.int32), np.empty(columns + 1, np.int32)
        self._col_idx, self._perm, self._zero = np.empty(nnz, np.int32), np.empty(nnz, np.int32), np.zeros(1, np.int32)
        arrays = CsrArrays(
            forward_blocks=1,
            backward_blocks=1,
            backward_tap_rank=_address(self._zero),
            backward_tap_offset=_address(self._zero),
            forward_row_ptr=_address(self._row_ptr),
            backward_row_ptr=_address(self._transposed_row_ptr),
            backward_col_idx=_address(self._col_idx),
            backward_perm=_address(self._perm),
        )
        native.rewire_build_csr(layer_shape(geometry), positions.data_ptr(), is_int64(positions), nnz, arrays)
        sorted_rows = CsrRows(
            rows=rows,
            is_int64=is_int64(positions),
            row_ptr=_address(self._row_ptr),
            col_idx=positions.data_ptr(),
            row_stride=columns,
        )
        permuted_rows = CsrRows(
            rows=columns,
            row_ptr=_address(self._transposed_row_ptr),
            col_idx=_address(self._col_idx),
            perm=_address(self._perm),
        )
        outputs, inputs = (permuted_rows, sorted_rows) if self.inputs_first else (sorted_rows, permuted_rows)
        self.csr = LinearCsr(outputs=outputs, inputs=inputs, nnz=nnz)

    @property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        return sum(array.nbytes for array in (self._row_ptr, self._transposed_row_ptr, self._col_idx, self._perm))


class InputsFirstPlan(LinearPlan):
    """Both passes of a linear layer whose weight has the shape (inputs, outputs)."""

    inputs_first = True


def _address(array: NDArray[np.int32]) -> int:
    return array.ctypes.data
