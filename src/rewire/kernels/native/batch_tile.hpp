// How a row of the batch is cut into tiles of whole vectors, and how a tile is written.
#pragma once
#include "simd.hpp"
#include "tuning.hpp"

namespace rewire {

// Whether an output of `size` floats is written with non-temporal stores: only a large one whose every vector is aligned.
inline bool use_nontemporal(const float *to, int64_t size, int64_t batch) {
    return size >= NONTEMPORAL_MIN && batch % WIDTH == 0 && reinterpret_cast<uintptr_t>(to) % sizeof(Vector) == 0;
}

// Writes VECTORS vectors, except for the first `overlap` lanes, which the tile before has written.
template <class Vec, int VECTORS> inline void store_tile(float *to, const Vec *values, int overlap, bool nontemporal) {
    constexpr int LANES = lanes<Vec>;
    if (overlap) {
        float last[LANES];
        store<Vec>(last, values[0]);
        for (int lane = overlap; lane < LANES; lane++) to[lane] = last[lane];
    } else if (nontemporal) {
        UNROLL for (int v = 0; v < VECTORS; v++) store_nontemporal<Vec>(to + v * LANES, values[v]);
    } else {
        UNROLL for (int v = 0; v < VECTORS; v++) store<Vec>(to + v * LANES, values[v]);
    }
}

// A part of the batch: `vectors` vectors of type `Vec`, both known when the loop over it is compiled.
template <class Vec_, int VECTORS> struct BatchTile {
    typedef Vec_ Vec;
    static constexpr int vectors = VECTORS;
};

// Cuts a batch of `size` into tiles of at most MAX_VECTORS vectors and calls work(tile, first sample, overlap) for each.
//
// A remainder below a full vector is covered by moving the last vector back until it ends with the batch: its first `overlap`
// lanes were done by the tile before and must not be stored or summed again. A batch smaller than a vector goes one by one.
template <int MAX_VECTORS, class Work> inline void for_each_tile(int64_t size, Work work) {
    int64_t at = 0;
    while (at + MAX_VECTORS * WIDTH <= size) work(BatchTile<Vector, MAX_VECTORS>{}, at, 0), at += MAX_VECTORS * WIDTH;
    if constexpr (MAX_VECTORS > 4) {
        if (at + 4 * WIDTH <= size) work(BatchTile<Vector, 4>{}, at, 0), at += 4 * WIDTH;
    }
    if (at + 2 * WIDTH <= size) work(BatchTile<Vector, 2>{}, at, 0), at += 2 * WIDTH;
    if (at + WIDTH <= size) work(BatchTile<Vector, 1>{}, at, 0), at += WIDTH;
    if (at == size) return;
    if (size >= WIDTH) return work(BatchTile<Vector, 1>{}, size - WIDTH, int(WIDTH - (size - at)));
    for (; at < size; at++) work(BatchTile<float, 1>{}, at, 0);
}

}  // namespace rewire
