// The weight of a sparse linear layer in CSR form, in both directions.
#pragma once
#include <cstdint>

namespace rewire {

// One direction. Rows are what a pass writes: output features forward, input features backward.
struct CsrRows {
    int32_t rows, is_int64;
    const int32_t *row_ptr;  // [rows + 1]
    const void *col_idx;     // [nnz] 32-bit column indices, or the flat positions of the weight (64-bit ones if `is_int64`)
    int64_t row_stride;      // taken off for each row: the columns if `col_idx` are flat positions, else zero
    const int32_t *perm;     // [nnz] the index of a non-zero's value in the order of the positions; null: in that order
};

struct LinearCsr {
    CsrRows outputs, inputs;
    int64_t nnz;
};

}  // namespace rewire
