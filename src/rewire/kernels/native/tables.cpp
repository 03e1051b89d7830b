// The tables of a layer, made from its sorted flat positions: where each row's non-zeros begin, and the order in which
// the backward pass meets them. Counting sorts: a rewiring costs a few nanoseconds for each non-zero.
#include <cstring>
#include <vector>

#include "tables.hpp"
#include "vector.hpp"

namespace rewire {
namespace {

// Calls work(k, row, input of its group, tap) for every non-zero in order.
template <class P, class Work> void each(const Layer &layer, const P *positions, int64_t nnz, Work work) {
    const int64_t wide = int64_t(layer.inputs) * layer.taps;
    int64_t row = 0, end = wide;
    for (int64_t k = 0; k < nnz; k++) {
        const int64_t position = positions[k];
        if (position >= end) {
            row = position / wide;
            end = (row + 1) * wide;
        }
        const uint32_t rest = uint32_t(position - (end - wide)), input = rest / uint32_t(layer.taps);
        work(k, int32_t(row), int32_t(input), int32_t(rest - input * layer.taps));
    }
}

template <class P> bool is_sorted(const P *positions, int64_t nnz) {
    for (int64_t k = 1; k < nnz; k++)
        if (positions[k - 1] >= positions[k]) return false;
    return true;
}

void accumulate(int32_t *counts, int64_t size) {  // counts -> where each begins
    int32_t total = 0;
    for (int64_t i = 0; i <= size; i++) {
        const int32_t here = i < size ? counts[i] : 0;
        counts[i] = total;
        total += here;
    }
}

template <class P> void tables(const Layer &layer, const P *positions, int64_t nnz, const Tables &t) {
    const int32_t per_group = layer.outputs / layer.groups, inputs = layer.inputs * layer.groups;
    const int64_t cells = int64_t(layer.outputs) * t.forward_blocks;
    const int64_t places = int64_t(inputs) * t.backward_blocks * layer.taps;
    std::memset(t.forward_begin, 0, sizeof(int32_t) * (cells + 1));
    std::memset(t.backward_begin, 0, sizeof(int32_t) * (places + 1));
    const auto place = [&](int32_t row, int32_t input, int32_t tap) {
        const int64_t block = int64_t(row) * t.backward_blocks / layer.outputs;
        return (block * inputs + (row / per_group) * layer.inputs + input) * layer.taps + t.backward_place[tap];
    };
    each(layer, positions, nnz, [&](int64_t, int32_t row, int32_t input, int32_t tap) {
        t.forward_begin[int64_t(row) * t.forward_blocks + int64_t(input) * t.forward_blocks / layer.inputs]++;
        t.backward_begin[place(row, input, tap)]++;
    });
    accumulate(t.forward_begin, cells);
    accumulate(t.backward_begin, places);
    std::vector<int32_t> next(t.backward_begin, t.backward_begin + places);
    each(layer, positions, nnz, [&](int64_t k, int32_t row, int32_t input, int32_t tap) {
        const int32_t at = next[place(row, input, tap)]++;
        t.backward_index[at] = int32_t(k);
        t.backward_offset[at] = t.backward_reach[tap] + row;
    });
}

}  // namespace

// Within a cell the layer's own order is by input; borders need it by tap.
template <class P>
void sort_by_tap(const Layer &layer, const Forward &f, const P *positions, const float *values, int32_t *begin,
                 int32_t *offset, float *sorted, int threads) {
    const int32_t per_group = layer.outputs / layer.groups;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int32_t row = 0; row < layer.outputs; row++) {
        const int64_t start = int64_t(row) * layer.inputs * layer.taps;
        const int32_t base = row / per_group * layer.inputs;
        for (int32_t block = 0; block < f.blocks; block++) {
            const int64_t cell = int64_t(row) * f.blocks + block;
            const int32_t from = f.begin[cell], to = f.begin[cell + 1];
            int32_t *first = begin + cell * layer.taps;  // the next cell's first entry is written by its own turn
            std::memset(first, 0, sizeof(int32_t) * layer.taps);
            for (int32_t k = from; k < to; k++) first[uint32_t(positions[k] - start) % uint32_t(layer.taps)]++;
            int32_t total = from;
            for (int32_t tap = 0; tap < layer.taps; tap++) {
                const int32_t here = first[tap];
                first[tap] = total;
                total += here;
            }
            for (int32_t k = from; k < to; k++) {
                const uint32_t rest = uint32_t(positions[k] - start), input = rest / uint32_t(layer.taps);
                const int32_t tap = int32_t(rest - input * layer.taps), at = first[tap]++;
                offset[at] = f.reach[tap] + base + int32_t(input);
                sorted[at] = values[k];
            }
            for (int32_t tap = layer.taps - 1; tap > 0; tap--) first[tap] = first[tap - 1];
            first[0] = from;
        }
    }
    begin[int64_t(layer.outputs) * f.blocks * layer.taps] = f.begin[int64_t(layer.outputs) * f.blocks];
}

template void sort_by_tap<int32_t>(const Layer &, const Forward &, const int32_t *, const float *, int32_t *, int32_t *,
                                   float *, int);
template void sort_by_tap<int64_t>(const Layer &, const Forward &, const int64_t *, const float *, int32_t *, int32_t *,
                                   float *, int);

}  // namespace rewire

using namespace rewire;

// Whether positions rise; `wide`: they are 64-bit.
EXPORT int rewire_is_sorted(const void *positions, int wide, int64_t nnz) {
    return wide ? is_sorted(static_cast<const int64_t *>(positions), nnz)
                : is_sorted(static_cast<const int32_t *>(positions), nnz);
}

EXPORT void rewire_tables(const Layer *layer, const void *positions, int wide, int64_t nnz, const Tables *t) {
    if (wide) tables(*layer, static_cast<const int64_t *>(positions), nnz, *t);
    else tables(*layer, static_cast<const int32_t *>(positions), nnz, *t);
}
