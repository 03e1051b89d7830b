// Every pixel reads the map itself: every non-zero weight multiplies one contiguous piece of the batch, and the sums stay in
// registers. For batches of any size, and for maps where a copy would not pay.
#include <omp.h>

#include "moments.hpp"
#include "passes.hpp"

namespace rewire {
namespace {

// Rows [from, to) of one pixel and block for one tile of the batch.
template <class T>
inline void forward_tile(const Outward &f, Moments *moments, int32_t y, int32_t x, int32_t block, int32_t from, int32_t to,
                         int64_t at, int repeated, const Next *next) {
    typedef typename T::V V;
    constexpr int Z = T::count, W = lanes<V>;
    const Gather &g = f.g;
    const float *in = f.input + source(g, y, x, f.batch) + at;
    float *out = f.output + target(g, y, x, f.batch) + at;
    const bool last = block == g.blocks - 1;
    for (int32_t row = from; row < to; row++) {
        if (next) next->fetch(g, row, f.batch);
        V total[Z];
        float *to_row = out + row * f.batch;
        const V first = spread<V>(f.bias ? f.bias[row] : 0.f);
        UNROLL for (int z = 0; z < Z; z++) total[z] = block ? load<V>(to_row + z * W) : first;
        const float *in_row = in + (g.shift ? g.shift[row] * f.batch : 0);
        const int32_t *begin = g.cell(row, block);
        inner_taps(g, y, x, [&](int32_t low, int32_t high) {
            for (int32_t k = begin[low], end = begin[high]; k < end; k++) {
                const float *read = in_row + g.offset[k] * f.batch;
                const V value = spread<V>(f.values[k]);
                UNROLL for (int z = 0; z < Z; z++) total[z] += value * load<V>(read + z * W);
            }
        });
        if (last && f.clamped) {
            const V low = spread<V>(f.range.low), high = spread<V>(f.range.high);
            UNROLL for (int z = 0; z < Z; z++) total[z] = clamp<V>(total[z], low, high);
        }
        if (last && moments) moments->add<V, Z>(row, total, repeated);
        put<V, Z>(to_row, total, repeated, f.streamed && g.blocks == 1);
    }
}

// Each gradient that is loaded serves twice: for the input's gradient and, multiplied by the input, for the weight's.
template <bool INPUT, bool VALUES, class T>
inline void backward_tile(const Inward &b, float *grad_values, int32_t y, int32_t x, int32_t block, int32_t from, int32_t to,
                          int64_t at, int repeated, const Next *next) {
    typedef typename T::V V;
    constexpr int Z = T::count, W = lanes<V>;
    const Gather &g = b.g;
    const float *grad = b.grad + source(g, y, x, b.batch) + at;
    const int64_t place = target(g, y, x, b.batch) + at;
    for (int32_t row = from; row < to; row++) {
        if (next) next->fetch(g, row, b.batch);
        V total[Z], input[Z];
        float *to_row = b.grad_input + place + row * b.batch;
        UNROLL for (int z = 0; z < Z; z++) {
            if constexpr (INPUT) total[z] = block ? load<V>(to_row + z * W) : V{};
            if constexpr (VALUES) input[z] = load<V>(b.input + place + row * b.batch + z * W);
        }
        if constexpr (VALUES && !std::is_same_v<V, float>) {
            for (int lane = 0; lane < repeated; lane++) input[0][lane] = 0.f;  // counted by the tile before
        }
        auto one = [&](int32_t k) {
            const float *read = grad + g.offset[k] * b.batch;
            const V value = INPUT ? spread<V>(b.values[k]) : V{};
            V product{};
            UNROLL for (int z = 0; z < Z; z++) {
                const V now = load<V>(read + z * W);
                if constexpr (INPUT) total[z] += value * now;
                if constexpr (VALUES) product += now * input[z];
            }
            return product;
        };
        const int32_t *begin = g.cell(row, block);
        inner_taps(g, y, x, [&](int32_t low, int32_t high) {
            sum_products<VALUES, V>(begin[low], begin[high], grad_values, one);
        });
        if constexpr (INPUT) put<V, Z>(to_row, total, repeated, b.streamed && g.blocks == 1);
    }
}

template <bool INPUT, bool VALUES> void backward(const Inward &b, const Division &division) {
    const Gather &g = b.g;
#pragma omp parallel num_threads(division.threads)
    {
        float *mine = b.buffer(omp_get_thread_num() % division.buffers());
        division.each(g.rows, [&](int32_t pixel, int32_t first, int32_t last) {
            const int32_t y = pixel / g.x.size, x = pixel % g.x.size;
            const Next next(g, b.grad, VALUES ? b.input : nullptr, y, x, b.batch);
            pieces(g, first, last, b.batch, [&](int32_t block, int32_t from, int32_t to) {
                cut<BACKWARD_TILE>(b.batch, [&](auto tile, int64_t at, int repeated) {
                    const Next *now = at == 0 && block == 0 && division.parts == 1 ? &next : nullptr;
                    backward_tile<INPUT, VALUES, decltype(tile)>(b, mine, y, x, block, from, to, at, repeated, now);
                });
            });
        });
        if (b.streamed) fence();
    }
}

}  // namespace

void direct_forward(const Outward &f, const Division &division) {
    const Gather &g = f.g;
#pragma omp parallel num_threads(division.threads)
    {
        Moments mine(f.moments, g.rows, omp_get_thread_num());
        division.each(g.rows, [&](int32_t pixel, int32_t first, int32_t last) {
            const int32_t y = pixel / g.x.size, x = pixel % g.x.size;
            const Next next(g, f.input, nullptr, y, x, f.batch);
            pieces(g, first, last, f.batch, [&](int32_t block, int32_t from, int32_t to) {
                cut<FORWARD_TILE>(f.batch, [&](auto tile, int64_t at, int repeated) {
                    const Next *now = at == 0 && block == 0 && division.parts == 1 ? &next : nullptr;
                    forward_tile<decltype(tile)>(f, f.moments ? &mine : nullptr, y, x, block, from, to, at, repeated, now);
                });
            });
        });
        if (f.streamed) fence();
    }
}

void direct_backward(const Inward &b, const Division &division) {
    wanted(b, [&](auto input, auto values) { backward<input.value, values.value>(b, division); });
}

}  // namespace rewire
