// A sparse convolution in CSR form, in one direction.
//
// HWCN layout. All batch kernels store activations as [height][width][channels][batch]: the batch is innermost, so a weight
// multiplies one contiguous vector, the same channel of the same pixel in all samples. To torch, such a tensor has the shape
// (N, C, H, W) and the strides (1, N, W*C*N, C*N). A linear layer is a 1x1 convolution on activations of one pixel.
//
// CSR. A row is one channel that is written; its non-zeros are the weights of that channel. The forward pass reads the input
// and writes the output; the backward pass is the same loop over the transpose: it reads the gradient of the output and
// writes the gradient of the input. So "in" and "out" below are those of the pass, not those of the layer.
//
// A tap is one position of the kernel, such as (dy, dx) = (0, 2) of a 3x3 kernel. Within a row, non-zeros are sorted by column
// block (a range of input channels that fits into L2), then by tap, then by input channel. Output pixels at the border leave
// out the taps that would read outside of the input; nothing is padded.
#pragma once
#include <algorithm>
#include <cstdint>

#include "simd.hpp"
#include "tuning.hpp"

namespace rewire {

// One axis of the output: where pixel `i` reads, and which taps stay inside of the input.
//
// In the backward pass of a convolution with stride s, pixel `i` is reached by every s-th tap only. Those are its phase; taps
// are sorted by phase so that the ones of a pixel are a range. Without a stride, and in the forward pass, there is one phase.
struct Axis {
    int32_t size;                        // output pixels
    const int32_t *base;                 // [size] the input pixel that a tap with offset zero reads; may lie outside
    const int32_t *phase;                // [size]
    const int32_t *tap_begin, *tap_end;  // [size] the taps of that phase that stay inside
};

struct ConvCsr {
    int32_t out_channels, taps, col_blocks;
    int32_t in_channels, in_height, in_width;
    int64_t nnz;
    Axis y, x;
    int32_t x_phases;
    const int32_t *phase_first_tap;  // [phases of y * phases of x] the first tap of a phase
    const int32_t *phase_width;      // [x_phases] taps of a phase in one row of the kernel
    const int32_t *tap_dy, *tap_dx;  // [taps] pixels from the base to what a tap reads
    int64_t row_stride, block_stride;  // in `row_ptr`, from one row and from one column block to the next
    const int32_t *row_ptr;   // [out_channels * col_blocks * taps + 1] the first non-zero of a row, column block and tap
    const int32_t *col_idx;   // [nnz] what a non-zero reads: (dy * in_width + dx) * in_channels + channel, from the base on
    const int32_t *row_base;  // [out_channels] to be added to col_idx of a row where these are flat positions, or null
    const int32_t *perm;      // [nnz] the index of a non-zero's value in the order of the positions; null: in that order
    int32_t prefetch_dy, prefetch_dx, prefetch_rows;  // pixels that the next output pixel reads and this one does not

    // The `taps + 1` row pointers of one row and column block.
    const int32_t *tap_ptr(int32_t row, int32_t block) const { return row_ptr + row * row_stride + block * block_stride; }
};

// Calls work(first tap, end) for the taps that stay inside of the input at output pixel (y, x): one range, unless columns of
// the kernel are cut off.
template <class Work> inline void for_each_tap_range(const ConvCsr &csr, int32_t y, int32_t x, Work work) {
    const int32_t phase = csr.x.phase[x], width = csr.phase_width[phase];
    const int32_t first = csr.phase_first_tap[csr.y.phase[y] * csr.x_phases + phase];
    const int32_t top = csr.y.tap_begin[y], bottom = csr.y.tap_end[y], left = csr.x.tap_begin[x], right = csr.x.tap_end[x];
    if (left == 0 && right == width) {
        work(first + top * width, first + bottom * width);
    } else {
        for (int32_t row = top; row < bottom; row++) work(first + row * width + left, first + row * width + right);
    }
}

// The base of output pixel (y, x) in the input, in floats. It may lie outside of the input; no tap that stays inside does.
inline int64_t input_offset(const ConvCsr &csr, int32_t y, int32_t x, int64_t batch) {
    return (int64_t(csr.y.base[y]) * csr.in_width + csr.x.base[x]) * csr.in_channels * batch;
}

inline int64_t output_offset(const ConvCsr &csr, int32_t y, int32_t x, int64_t batch) {
    return (int64_t(y) * csr.x.size + x) * csr.out_channels * batch;
}

// Prefetches the pixels that the next output pixel reads while this one is computed, a share of them with every row. A tile of
// the batch is only a part of each channel, and hardware prefetches poorly what is not read contiguously.
struct Prefetcher {
    const float *pixels[PREFETCH_ROWS], *beneath = nullptr;  // of the input; of the array that has the shape of the output
    int32_t count = 0;

    // `same_shape`: an array of the shape of the output that is read along with it, or null.
    Prefetcher(const ConvCsr &csr, const float *input, const float *same_shape, int32_t y, int32_t x, int64_t batch) {
        const int32_t j = csr.x.base[x] + csr.prefetch_dx, top = csr.y.base[y] + csr.prefetch_dy;
        for (int32_t i = std::max(top, 0); i < std::min({top + csr.prefetch_rows, csr.in_height, top + PREFETCH_ROWS}); i++)
            if (j >= 0 && j < csr.in_width)
                pixels[count++] = input + (int64_t(i) * csr.in_width + j) * csr.in_channels * batch;
        if (same_shape && (y + 1 < csr.y.size || x + 1 < csr.x.size))
            beneath = same_shape + output_offset(csr, y, x, batch) + int64_t(csr.out_channels) * batch;
    }

    // The share of one row.
    void prefetch_share(const ConvCsr &csr, int32_t row, int64_t batch) const {
        const int64_t from = int64_t(csr.in_channels) * row / csr.out_channels;
        const int64_t to = int64_t(csr.in_channels) * (row + 1) / csr.out_channels;
        for (int32_t i = 0; i < count; i++) prefetch(pixels[i] + from * batch, (to - from) * batch);
        if (beneath) prefetch(beneath + row * batch, batch);
    }
};

// Calls work(column block, first row, end) for blocks of the rows [from, to).
//
// The outer blocks hold as many output rows as stay in L2 while one column block after the other is added to them. Where the
// whole batch of a column block stays in L2 too, those rows come in smaller blocks whose CSR arrays stay in L1 while the tiles
// of the batch pass by.
template <class Work> void for_each_row_block(const ConvCsr &csr, int32_t from, int32_t to, int64_t batch, Work work) {
    const int64_t col_block_bytes = int64_t(csr.in_channels) * csr.taps / csr.col_blocks * batch * 4;
    const int64_t row_nnz = std::max<int64_t>(csr.nnz / (int64_t(csr.out_channels) * csr.col_blocks), 1);
    const int32_t outer =
        csr.col_blocks == 1 ? csr.out_channels : int32_t(std::max<int64_t>(ROW_BLOCK_BYTES / (batch * 4), 1));
    const int32_t inner = col_block_bytes > COL_BLOCK_BYTES
                              ? outer
                              : std::min(outer, int32_t(std::max<int64_t>(ROW_BLOCK_NNZ / row_nnz, 1)));
    for (int32_t first = from; first < to; first += std::min(outer, to - first)) {
        const int32_t last = first + std::min(outer, to - first);
        for (int32_t block = 0; block < csr.col_blocks; block++)
            for (int32_t row = first; row < last; row += std::min(inner, last - row))
                work(block, row, row + std::min(inner, last - row));
    }
}

}  // namespace rewire
