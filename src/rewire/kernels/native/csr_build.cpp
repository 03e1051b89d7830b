// CSR arrays of both passes by counting sort: a rewiring costs a few nanoseconds for each non-zero.
#include "csr_build.hpp"

#include <cstring>
#include <vector>

#include "entry_point.hpp"

namespace rewire {
namespace {

// Calls work(k, output channel, input channel of its group, tap) for every non-zero in order.
template <class Position, class Work>
void for_each_nonzero(const LayerShape &shape, const Position *positions, int64_t nnz, Work work) {
    const int64_t row_size = int64_t(shape.in_channels) * shape.taps;
    int64_t row = 0, row_end = row_size;
    for (int64_t k = 0; k < nnz; k++) {
        const int64_t position = positions[k];
        if (position >= row_end) {
            row = position / row_size;
            row_end = (row + 1) * row_size;
        }
        const uint32_t column = uint32_t(position - (row_end - row_size)), input = shape.taps == 1 ? column : column / uint32_t(shape.taps);
        work(k, int32_t(row), int32_t(input), int32_t(column - input * shape.taps));
    }
}

template <class Position> bool is_sorted(const Position *positions, int64_t nnz) {
    for (int64_t k = 1; k < nnz; k++)
        if (positions[k - 1] >= positions[k]) return false;
    return true;
}

// Counts to pointers: entry i becomes the sum of the entries before it.
void exclusive_scan(int32_t *counts, int64_t size) {
    int32_t total = 0;
    for (int64_t i = 0; i <= size; i++) {
        const int32_t here = i < size ? counts[i] : 0;
        counts[i] = total;
        total += here;
    }
}

template <class Position>
void build(const LayerShape &shape, const Position *positions, int64_t nnz, const CsrArrays &arrays) {
    const int32_t outputs_per_group = shape.out_channels / shape.groups, inputs = shape.in_channels * shape.groups;
    const int64_t forward_size = int64_t(shape.out_channels) * arrays.forward_blocks;
    const int64_t backward_size = int64_t(inputs) * arrays.backward_blocks * shape.taps;
    std::memset(arrays.forward_row_ptr, 0, sizeof(int32_t) * (forward_size + 1));
    std::memset(arrays.backward_row_ptr, 0, sizeof(int32_t) * (backward_size + 1));
    std::vector<int32_t> forward_block(shape.in_channels);  // of each input: divisions cost more than everything else here
    for (int64_t input = 0; input < shape.in_channels; input++)
        forward_block[input] = int32_t(input * arrays.forward_blocks / shape.in_channels);
    int32_t current_row = -1;
    int64_t first_input = 0;  // of the current row's group, in its block
    const auto backward_slot = [&](int32_t row, int32_t input, int32_t tap) {
        if (row != current_row) {
            current_row = row;
            const int64_t block = int64_t(row) * arrays.backward_blocks / shape.out_channels;
            first_input = block * inputs + (row / outputs_per_group) * shape.in_channels;
        }
        return (first_input + input) * shape.taps + arrays.backward_tap_rank[tap];
    };
    for_each_nonzero(shape, positions, nnz, [&](int64_t, int32_t row, int32_t input, int32_t tap) {
        arrays.forward_row_ptr[int64_t(row) * arrays.forward_blocks + forward_block[input]]++;
        arrays.backward_row_ptr[backward_slot(row, input, tap)]++;
    });
    exclusive_scan(arrays.forward_row_ptr, forward_size);
    exclusive_scan(arrays.backward_row_ptr, backward_size);
    std::vector<int32_t> next(arrays.backward_row_ptr, arrays.backward_row_ptr + backward_size);
    for_each_nonzero(shape, positions, nnz, [&](int64_t k, int32_t row, int32_t input, int32_t tap) {
        const int32_t at = next[backward_slot(row, input, tap)]++;
        arrays.backward_perm[at] = int32_t(k);
        arrays.backward_col_idx[at] = arrays.backward_tap_offset[tap] + row;
    });
}

}  // namespace

// Positions order the non-zeros of a row by input channel, then by tap; leaving out taps at borders needs them by tap first.
template <class Position>
void sort_by_tap(const LayerShape &shape, const ForwardCsr &forward, const Position *positions, const float *values,
                 int32_t *row_ptr, int32_t *col_idx, float *sorted, int threads) {
    const int32_t outputs_per_group = shape.out_channels / shape.groups;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int32_t row = 0; row < shape.out_channels; row++) {
        const int64_t row_start = int64_t(row) * shape.in_channels * shape.taps;
        const int32_t group_base = row / outputs_per_group * shape.in_channels;
        for (int32_t block = 0; block < forward.col_blocks; block++) {
            const int64_t segment = int64_t(row) * forward.col_blocks + block;
            const int32_t from = forward.row_ptr[segment], to = forward.row_ptr[segment + 1];
            int32_t *tap_ptr = row_ptr + segment * shape.taps;  // the last tap ends where the next segment begins
            std::memset(tap_ptr, 0, sizeof(int32_t) * shape.taps);
            for (int32_t k = from; k < to; k++) tap_ptr[uint32_t(positions[k] - row_start) % uint32_t(shape.taps)]++;
            int32_t total = from;
            for (int32_t tap = 0; tap < shape.taps; tap++) {
                const int32_t here = tap_ptr[tap];
                tap_ptr[tap] = total;
                total += here;
            }
            for (int32_t k = from; k < to; k++) {
                const uint32_t column = uint32_t(positions[k] - row_start), input = shape.taps == 1 ? column : column / uint32_t(shape.taps);
                const int32_t tap = int32_t(column - input * shape.taps), at = tap_ptr[tap]++;
                col_idx[at] = forward.tap_offset[tap] + group_base + int32_t(input);
                sorted[at] = values[k];
            }
            // Every entry has moved on to the first of the next tap: move them back.
            for (int32_t tap = shape.taps - 1; tap > 0; tap--) tap_ptr[tap] = tap_ptr[tap - 1];
            tap_ptr[0] = from;
        }
    }
    const int64_t segments = int64_t(shape.out_channels) * forward.col_blocks;
    row_ptr[segments * shape.taps] = forward.row_ptr[segments];
}

template void sort_by_tap<int32_t>(const LayerShape &, const ForwardCsr &, const int32_t *, const float *, int32_t *,
                                   int32_t *, float *, int);
template void sort_by_tap<int64_t>(const LayerShape &, const ForwardCsr &, const int64_t *, const float *, int32_t *,
                                   int32_t *, float *, int);

}  // namespace rewire

using namespace rewire;

// Whether positions increase strictly. `is_int64`: they are 64-bit integers, else 32-bit ones.
EXPORT int rewire_is_sorted(const void *positions, int is_int64, int64_t nnz) {
    return is_int64 ? is_sorted(static_cast<const int64_t *>(positions), nnz)
                    : is_sorted(static_cast<const int32_t *>(positions), nnz);
}
REGISTER(rewire_is_sorted);

// Fills the CSR arrays of both passes from sorted positions.
EXPORT void rewire_build_csr(const LayerShape *shape, const void *positions, int is_int64, int64_t nnz,
                             const CsrArrays *arrays) {
    if (is_int64) build(*shape, static_cast<const int64_t *>(positions), nnz, *arrays);
    else build(*shape, static_cast<const int32_t *>(positions), nnz, *arrays);
}
REGISTER(rewire_build_csr);
