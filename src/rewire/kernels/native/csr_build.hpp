// Builds the CSR arrays of a layer (conv_csr.hpp) from the sorted flat positions of its non-zeros.
#pragma once
#include <cstdint>

namespace rewire {

// The dense shape of a layer's weight: (out_channels, in_channels of one group, taps).
struct LayerShape {
    int32_t out_channels, in_channels, taps, groups;
};

// The forward pass reads the non-zeros in the order of their positions: row after row, and in a row by column block.
struct ForwardCsr {
    int32_t col_blocks;
    const int32_t *row_ptr;     // [out_channels * col_blocks + 1]
    const int32_t *tap_offset;  // [taps] what a tap adds to a column index
};

// What csr_build.cpp fills, and the sizes that it needs for that.
struct CsrArrays {
    int32_t forward_blocks, backward_blocks;
    const int32_t *backward_tap_rank;    // [taps] the place of a tap when taps are sorted by phase
    const int32_t *backward_tap_offset;  // [taps] what a tap adds to a column index
    int32_t *forward_row_ptr;            // [out_channels * forward_blocks + 1]
    int32_t *backward_row_ptr;           // [backward_blocks * in_channels of all groups * taps + 1]
    int32_t *backward_col_idx, *backward_perm;  // [nnz]
};

// Sorts the non-zeros of each row and column block by tap, then by input channel, into `row_ptr`, `col_idx` and `sorted`
// values.
template <class Position>
void sort_by_tap(const LayerShape &shape, const ForwardCsr &forward, const Position *positions, const float *values,
                 int32_t *row_ptr, int32_t *col_idx, float *sorted, int threads);

}  // namespace rewire
