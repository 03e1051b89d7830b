// Sparse linear and convolution layers over batch-innermost maps: every non-zero weight multiplies one contiguous piece
// of the batch, and the sums stay in registers. Nothing is computed for a weight that does not exist.
#include <omp.h>

#include <cstring>

#include "gather.hpp"
#include "moments.hpp"
#include "scratch.hpp"
#include "tables.hpp"
#include "vector.hpp"

namespace rewire {
namespace {

thread_local Scratch sorted_values, sorted_offsets, sorted_begin, gradients, moments_memory;

struct Outward {
    const Gather &g;
    const float *input, *values, *bias;
    float *output;
    int64_t batch;
    Range range;
    bool clamped, streamed;
};

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
        put<V, Z>(to_row, total, repeated, f.streamed);
    }
}

void forward(const Outward &f, float *mean, float *variance, int threads) {
    const Gather &g = f.g;
    const Division division(g, f.batch, threads);
    char *memory = mean ? moments_memory.take<char>(Moments::bytes(g.rows) * division.threads) : nullptr;
    if (memory) std::memset(memory, 0, size_t(Moments::bytes(g.rows) * division.threads));
#pragma omp parallel num_threads(division.threads)
    {
        Moments mine(memory, g.rows, omp_get_thread_num());
        divided(division, g, [&](int32_t y, int32_t x, int32_t first, int32_t last) {
            const Next next(g, f.input, nullptr, y, x, f.batch);
            pieces(g, first, last, f.batch, [&](int32_t block, int32_t from, int32_t to) {
                cut<FORWARD_TILE>(f.batch, [&](auto tile, int64_t at, int repeated) {
                    const Next *now = at == 0 && block == 0 && division.by_pixel() ? &next : nullptr;
                    forward_tile<decltype(tile)>(f, mean ? &mine : nullptr, y, x, block, from, to, at, repeated, now);
                });
            });
        });
        if (f.streamed) fence();
    }
    if (mean) Moments::finish(memory, g.rows, division.threads, mean, variance);
}

struct Inward {
    const Gather &g;
    const float *input, *grad, *values;  // grad: of the output; it is what is gathered
    float *grad_input;
    int64_t batch;
    bool streamed;
};

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
            int32_t k = begin[low];
            const int32_t end = begin[high];
            if constexpr (!std::is_same_v<V, float>) {
                for (; k + 4 <= end; k += 4) {
                    const V p = one(k), q = one(k + 1), r = one(k + 2), s = one(k + 3);
                    if constexpr (VALUES) store<Quad>(grad_values + k, load<Quad>(grad_values + k) + sums(p, q, r, s));
                }
            }
            for (; k < end; k++) {
                const V p = one(k);
                if constexpr (VALUES) grad_values[k] += sum<V>(p);
            }
        });
        if constexpr (INPUT) put<V, Z>(to_row, total, repeated, b.streamed);
    }
}

// Threads over pixels sum the weights' gradients in buffers of their own; threads over rows never meet.
template <bool INPUT, bool VALUES>
void backward(Inward b, const float *values, float *grad_values, int threads) {
    const Gather &g = b.g;
    const Division division(g, b.batch, threads);
    const int count = division.by_pixel() ? division.threads : 1;
    float *sorted = sorted_values.take<float>(g.nnz), *buffers = gradients.take<float>(VALUES ? g.nnz * count : 0);
    b.values = sorted;
#pragma omp parallel num_threads(division.threads)
    {
        float *mine = buffers + (division.by_pixel() ? g.nnz * omp_get_thread_num() : 0);
#pragma omp for schedule(static)
        for (int64_t k = 0; k < g.nnz; k++) {
            if (INPUT) sorted[k] = values[g.index[k]];
            for (int one = 0; one < (VALUES ? count : 0); one++) buffers[k + one * g.nnz] = 0.f;
        }
        divided(division, g, [&](int32_t y, int32_t x, int32_t first, int32_t last) {
            const Next next(g, b.grad, VALUES ? b.input : nullptr, y, x, b.batch);
            pieces(g, first, last, b.batch, [&](int32_t block, int32_t from, int32_t to) {
                cut<BACKWARD_TILE>(b.batch, [&](auto tile, int64_t at, int repeated) {
                    const Next *now = at == 0 && block == 0 && division.by_pixel() ? &next : nullptr;
                    backward_tile<INPUT, VALUES, decltype(tile)>(b, mine, y, x, block, from, to, at, repeated, now);
                });
            });
        });
        if (b.streamed) fence();
#pragma omp for schedule(static)
        for (int64_t k = 0; k < (VALUES ? g.nnz : 0); k++) {
            float total = buffers[k];
            for (int other = 1; other < count; other++) total += buffers[k + other * g.nnz];
            grad_values[g.index[k]] = total;
        }
    }
}

}  // namespace
}  // namespace rewire

using namespace rewire;

// output[y][x][row] = bias[row] + sum of value * input, then clamped to [0, limit] if active. The bias may be null.
// If `mean` is not null, it and `variance` get the moments of the output. A gather without offsets gets them here: a kernel
// of one tap reads its own positions, any other is sorted first.
EXPORT void rewire_forward(const Layer *layer, const Forward *tables, const Gather *gather, const void *positions, int wide,
                           const float *input, const float *values, const float *bias, float *output, float *mean,
                           float *variance, int64_t batch, int active, float limit, int threads) {
    Gather g = *gather;
    if (!g.offset && g.taps == 1 && !wide) {
        g.begin = tables->begin;
        g.offset = static_cast<const int32_t *>(positions);
    } else if (!g.offset) {
        int32_t *begin = sorted_begin.take<int32_t>(int64_t(g.rows) * g.blocks * g.taps + 1);
        int32_t *offset = sorted_offsets.take<int32_t>(g.nnz);
        float *sorted = sorted_values.take<float>(g.nnz);
        const int team = g.nnz < 1 << 14 ? 1 : threads;
        if (wide) sort_by_tap(*layer, *tables, static_cast<const int64_t *>(positions), values, begin, offset, sorted, team);
        else sort_by_tap(*layer, *tables, static_cast<const int32_t *>(positions), values, begin, offset, sorted, team);
        g.begin = begin, g.offset = offset, g.shift = nullptr, values = sorted;
    }
    const bool streamed = g.blocks == 1 && is_streamed(output, int64_t(g.y.size) * g.x.size * g.rows * batch, batch);
    const Outward f{g, input, values, bias, output, batch, Range(active, limit), active != 0, streamed};
    forward(f, mean, variance, threads);
}

// The gradients of the input and of the values; either may be null. `gather` is that of the backward pass.
EXPORT void rewire_backward(const Gather *gather, const float *input, const float *grad, const float *values,
                            float *grad_input, float *grad_values, int64_t batch, int threads) {
    const Gather &g = *gather;
    const bool streamed = g.blocks == 1 && is_streamed(grad_input, int64_t(g.y.size) * g.x.size * g.rows * batch, batch);
    const Inward b{g, input, grad, nullptr, grad_input, batch, streamed};
    if (grad_input && grad_values) backward<true, true>(b, values, grad_values, threads);
    else if (grad_input) backward<true, false>(b, values, grad_values, threads);
    else if (grad_values) backward<false, true>(b, values, grad_values, threads);
}

// The instruction set that this file was compiled for is `1`, if the processor has it. Asked of the baseline only.
EXPORT int rewire_supports(int level) {
#if defined(__x86_64__) || defined(__i386__)
    if (level == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (level == 2) return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
#endif
    return level == 0;
}
