// One direction of a sparse layer: how every pixel of one map gathers from the pixels of the other.
//
// Maps are stored batch-innermost: [height][width][channels][batch]. The forward pass gathers outputs from inputs, the
// backward pass inputs from outputs; both are the same loop over a different table. A linear layer is a map of one pixel.
#pragma once
#include <cstdint>

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
    int32_t channels, width;     // of the map that is read
    int64_t nnz;
    Axis y, x;
    int32_t phases_x;
    const int32_t *first_tap;    // [phases_y * phases_x] where the taps of a phase begin
    const int32_t *across;       // [phases_x] taps of a phase in one row of the kernel
    const int32_t *begin;        // [blocks * rows * taps + 1] the non-zeros of a block, row and tap
    const int32_t *offset;       // [nnz] channels between the base and what a non-zero reads
    const int32_t *index;        // [nnz] where a non-zero's value sits in the layer's own order
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

// How the work is divided: over pixels where there are enough of them, else over rows.
struct Division {
    int32_t pixels, parts;
    Division(const Gather &g, int threads) : pixels(g.y.size * g.x.size), parts(1) {
        if (threads > 1 && pixels < 4 * threads) parts = 2 * threads;
    }
    bool by_pixel() const { return parts == 1; }
};

}  // namespace rewire
