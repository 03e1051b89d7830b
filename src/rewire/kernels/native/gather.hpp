// One direction of a sparse layer: how every pixel of one map gathers from the pixels of the other.
//
// Maps are stored batch-innermost: [height][width][channels][batch]. The forward pass gathers outputs from inputs, the
// backward pass inputs from outputs; both are the same loop over a different table. A linear layer is a map of one pixel.
#pragma once
#include <algorithm>
#include <cstdint>

#include "vector.hpp"

namespace rewire {

// Along one axis of the map that is written: where pixel `i` begins to read, and which taps stay inside the map.
// With a stride, the backward pass meets only every other tap: taps are sorted by that phase.
struct Axis {
    int32_t size;
    const int32_t *base;         // [size] the pixel that is read through a tap of offset zero
    const int32_t *phase;        // [size]
    const int32_t *low, *high;   // [size] the taps of that phase that stay inside: low <= tap < high
};

struct Gather {
    int32_t rows, taps, blocks;  // channels written; taps of the kernel; blocks of channels read, so that they stay in cache
    int32_t channels, height, width;  // of the map that is read
    int64_t nnz;
    Axis y, x;
    int32_t phases_x;
    const int32_t *first_tap;    // [phases_y * phases_x] where the taps of a phase begin
    const int32_t *across;       // [phases_x] taps of a phase in one row of the kernel
    const int32_t *tap_y, *tap_x;  // [taps] pixels between the base and what a tap reads
    int64_t row_step, block_step;  // between cells of `begin`: a cell is one row and block, with `taps` entries
    const int32_t *begin;        // [blocks * rows * taps + 1] the non-zeros of a cell and tap
    const int32_t *offset;       // [nnz] channels between the base and what a non-zero reads
    const int32_t *shift;        // [rows] to be added to the offsets of a row, or null
    const int32_t *index;        // [nnz] where a non-zero's value sits in the layer's own order, or null: it is that order
    int32_t ahead_y, ahead_x, ahead_rows;  // from a pixel's base to the pixels that the next one reads and this one does not

    const int32_t *cell(int32_t row, int32_t block) const { return begin + row * row_step + block * block_step; }
};

// Calls work(from, to) with the ranges of taps that stay inside the map at pixel (y, x): one if no column is cut off.
template <class Work> inline void inner_taps(const Gather &g, int32_t y, int32_t x, Work work) {
    const int32_t phase = g.x.phase[x], wide = g.across[phase];
    const int32_t first = g.first_tap[g.y.phase[y] * g.phases_x + phase];
    const int32_t top = g.y.low[y], bottom = g.y.high[y], left = g.x.low[x], right = g.x.high[x];
    if (left == 0 && right == wide) {
        work(first + top * wide, first + bottom * wide);
    } else {
        for (int32_t row = top; row < bottom; row++) work(first + row * wide + left, first + row * wide + right);
    }
}

// Where pixel (y, x) begins to read, in floats. It may lie outside of the map; no tap that stays inside does.
inline int64_t source(const Gather &g, int32_t y, int32_t x, int64_t batch) {
    return (int64_t(g.y.base[y]) * g.width + g.x.base[x]) * g.channels * batch;
}

inline int64_t target(const Gather &g, int32_t y, int32_t x, int64_t batch) {
    return (int64_t(y) * g.x.size + x) * g.rows * batch;
}

// The pixels that come into sight next: they are fetched while this one is computed, row by row. Memory is slow where it is
// not read in one piece, and a tile of the batch is only a piece of a row.
struct Next {
    const float *read[8], *own = nullptr;  // of the map that is gathered from; of the one that lies under the result
    int32_t count = 0;

    Next(const Gather &g, const float *map, const float *under, int32_t y, int32_t x, int64_t batch) {
        const int32_t j = g.x.base[x] + g.ahead_x, top = g.y.base[y] + g.ahead_y;
        for (int32_t i = std::max(top, 0); i < std::min({top + g.ahead_rows, g.height, top + 8}); i++)
            if (j >= 0 && j < g.width) read[count++] = map + (int64_t(i) * g.width + j) * g.channels * batch;
        if (under && (y + 1 < g.y.size || x + 1 < g.x.size)) own = under + target(g, y, x, batch) + int64_t(g.rows) * batch;
    }

    // The share of one row.
    void fetch(const Gather &g, int32_t row, int64_t batch) const {
        const int64_t from = int64_t(g.channels) * row / g.rows, to = int64_t(g.channels) * (row + 1) / g.rows;
        for (int32_t i = 0; i < count; i++) rewire::fetch(read[i] + from * batch, (to - from) * batch);
        if (own) rewire::fetch(own + row * batch, batch);
    }
};

// Calls work(block, from row, to row). The rows that are written stay in the second cache, with their tables at hand, while one
// block of channels after the other is read. Where the whole batch of a block stays there too, rows come in pieces whose tables
// stay in the first cache while the batch passes, tile by tile; else only a tile of the batch does.
template <class Work> void pieces(const Gather &g, int32_t from, int32_t to, int64_t batch, Work work) {
    const int64_t window = int64_t(g.channels) * g.taps / g.blocks * batch * 4;
    const int64_t per_row = std::max<int64_t>(g.nnz / (int64_t(g.rows) * g.blocks), 1);
    const int32_t most = g.blocks == 1 ? g.rows : int32_t(std::max<int64_t>((128 << 10) / (batch * 4), 1));
    const int32_t step = window > 300'000 ? most : std::min(most, int32_t(std::max<int64_t>(4096 / per_row, 1)));
    for (int32_t first = from; first < to; first += std::min(most, to - first)) {
        const int32_t last = first + std::min(most, to - first);
        for (int32_t block = 0; block < g.blocks; block++)
            for (int32_t row = first; row < last; row += std::min(step, last - row))
                work(block, row, row + std::min(step, last - row));
    }
}

}  // namespace rewire
