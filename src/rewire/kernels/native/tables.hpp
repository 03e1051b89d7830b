// What the tables are made from, and where they go.
#pragma once
#include <cstdint>

namespace rewire {

// The dense shape of a layer: inputs are those of one group.
struct Layer {
    int32_t outputs, inputs, taps, groups;
};

// The forward pass in the layer's own order: row after row, and in a row block after block of inputs.
struct Forward {
    int32_t blocks;
    const int32_t *begin;  // [outputs * blocks + 1]
    const int32_t *reach;  // [taps] what a tap adds to an offset
};

struct Tables {
    int32_t forward_blocks, backward_blocks;
    const int32_t *backward_place, *backward_reach;  // [taps] the rank of a tap, and what it adds to an offset
    int32_t *forward_begin;                          // [outputs * forward_blocks + 1]
    int32_t *backward_begin;                         // [backward_blocks * all inputs * taps + 1]
    int32_t *backward_offset, *backward_index;       // [nnz]
};

// Sorts each row's non-zeros by block, tap and input; a row's piece of the three arrays stays where it is.
template <class P>
void sort_by_tap(const Layer &layer, const Forward &f, const P *positions, const float *values, int32_t *begin,
                 int32_t *offset, float *sorted, int threads);

}  // namespace rewire
