// Sparse linear and convolution layers over batch-innermost maps: every non-zero weight multiplies one contiguous piece
// of the batch, and the sums stay in registers. Nothing is computed for a weight that does not exist.
#include <omp.h>

#include <cstring>
#include <memory>

#include "gather.hpp"
#include "vector.hpp"

namespace rewire {
namespace {

struct Forward {
    const Gather &g;
    const float *input, *values, *bias;
    float *output;
    int64_t batch;
    bool relu;
};

// Rows [from, to) of one pixel for one tile of the batch.
template <class T> inline void forward_tile(const Forward &f, int32_t y, int32_t x, int64_t at, int32_t from, int32_t to) {
    typedef typename T::V V;
    constexpr int Z = T::count, W = lanes<V>;
    const Gather &g = f.g;
    const float *in = f.input + source(g, y, x, f.batch) + at;
    float *out = f.output + target(g, y, x, f.batch) + at;
    for (int32_t block = 0; block < g.blocks; block++) {
        for (int32_t row = from; row < to; row++) {
            V total[Z];
            float *to_row = out + row * f.batch;
            const V first = spread<V>(f.bias ? f.bias[row] : 0.f);
            UNROLL for (int z = 0; z < Z; z++) total[z] = block ? load<V>(to_row + z * W) : first;
            const int32_t *begin = g.begin + (int64_t(block) * g.rows + row) * g.taps;
            inner_taps(g, y, x, [&](int32_t low, int32_t high) {
                for (int32_t k = begin[low], end = begin[high]; k < end; k++) {
                    const float *read = in + g.offset[k] * f.batch;
                    const V value = spread<V>(f.values[k]);
                    UNROLL for (int z = 0; z < Z; z++) total[z] += value * load<V>(read + z * W);
                }
            });
            if (f.relu && block == g.blocks - 1) {
                UNROLL for (int z = 0; z < Z; z++) total[z] = larger<V>(total[z], V{});
            }
            UNROLL for (int z = 0; z < Z; z++) store<V>(to_row + z * W, total[z]);
        }
    }
}

struct Backward {
    const Gather &g;
    const float *input, *grad, *values;  // grad: of the output; it is what is gathered
    float *grad_input, *grad_values;
    int64_t batch;
};

// Each gradient that is loaded serves twice: for the input's gradient and, multiplied by the input, for the weight's.
template <bool INPUT, bool VALUES, class T>
inline void backward_tile(const Backward &b, float *grad_values, int32_t y, int32_t x, int64_t at, int repeated,
                          int32_t from, int32_t to) {
    typedef typename T::V V;
    constexpr int Z = T::count, W = lanes<V>;
    const Gather &g = b.g;
    const float *grad = b.grad + source(g, y, x, b.batch) + at;
    const int64_t place = target(g, y, x, b.batch) + at;
    for (int32_t block = 0; block < g.blocks; block++) {
        for (int32_t row = from; row < to; row++) {
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
            const int32_t *begin = g.begin + (int64_t(block) * g.rows + row) * g.taps;
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
            if constexpr (INPUT) {
                UNROLL for (int z = 0; z < Z; z++) store<V>(to_row + z * W, total[z]);
            }
        }
    }
}

// Threads over pixels sum the weights' gradients in buffers of their own; threads over rows never meet.
template <bool INPUT, bool VALUES> void backward(const Backward &b, float *buffers, int threads) {
    const Gather &g = b.g;
    const Division division(g, threads);
    const int count = division.by_pixel() ? threads : 1;
#pragma omp parallel num_threads(threads)
    {
        float *mine = buffers + (division.by_pixel() ? g.nnz * omp_get_thread_num() : 0);
#pragma omp for schedule(static)
        for (int64_t k = 0; k < (VALUES ? g.nnz * count : 0); k++) buffers[k] = 0.f;
#pragma omp for schedule(static) collapse(2)
        for (int32_t part = 0; part < division.parts; part++)
            for (int32_t pixel = 0; pixel < division.pixels; pixel++) {
                const int32_t y = pixel / g.x.size, x = pixel % g.x.size;
                const int32_t from = int64_t(g.rows) * part / division.parts;
                const int32_t to = int64_t(g.rows) * (part + 1) / division.parts;
                cut<BACKWARD_TILE>(b.batch, [&](auto tile, int64_t at, int repeated) {
                    backward_tile<INPUT, VALUES, decltype(tile)>(b, mine, y, x, at, repeated, from, to);
                });
            }
#pragma omp for schedule(static)
        for (int64_t k = 0; k < (VALUES ? g.nnz : 0); k++) {
            float total = buffers[k];
            for (int other = 1; other < count; other++) total += buffers[k + other * g.nnz];
            b.grad_values[g.index[k]] = total;
        }
    }
}

std::unique_ptr<float[]> in_order(const Gather &g, const float *values, int threads) {
    std::unique_ptr<float[]> sorted(new float[g.nnz]);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t k = 0; k < g.nnz; k++) sorted[k] = values[g.index[k]];
    return sorted;
}

}  // namespace
}  // namespace rewire

using namespace rewire;

// output[y][x][row] = bias[row] + sum of value * input, then max(., 0) if relu. The bias may be null.
EXPORT void rewire_forward(const Gather *gather, const float *input, const float *values, const float *bias,
                           float *output, int64_t batch, int relu, int threads) {
    const Gather &g = *gather;
    const auto sorted = in_order(g, values, threads);
    const Forward f{g, input, sorted.get(), bias, output, batch, relu != 0};
    const Division division(g, threads);
#pragma omp parallel for num_threads(threads) schedule(static) collapse(2)
    for (int32_t part = 0; part < division.parts; part++)
        for (int32_t pixel = 0; pixel < division.pixels; pixel++) {
            const int32_t from = int64_t(g.rows) * part / division.parts, to = int64_t(g.rows) * (part + 1) / division.parts;
            cut<FORWARD_TILE>(batch, [&](auto tile, int64_t at, int) {
                forward_tile<decltype(tile)>(f, pixel / g.x.size, pixel % g.x.size, at, from, to);
            });
        }
}

// The gradients of the input and of the values; either may be null. `gather` is that of the backward pass.
EXPORT void rewire_backward(const Gather *gather, const float *input, const float *grad, const float *values,
                            float *grad_input, float *grad_values, int64_t batch, int threads) {
    const auto sorted = in_order(*gather, values, threads);
    const int count = Division(*gather, threads).by_pixel() ? threads : 1;
    const std::unique_ptr<float[]> buffers(new float[grad_values ? gather->nnz * count : 0]);
    const Backward b{*gather, input, grad, sorted.get(), grad_input, grad_values, batch};
    if (grad_input && grad_values) backward<true, true>(b, buffers.get(), threads);
    else if (grad_input) backward<true, false>(b, buffers.get(), threads);
    else if (grad_values) backward<false, true>(b, buffers.get(), threads);
}

// The instruction set that this file was compiled for is `1`, if the processor has it. Asked of the baseline only.
EXPORT int rewire_supports(int level) {
#if defined(__x86_64__) || defined(__i386__)
    if (level == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (level == 2) return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
#endif
    return level == 0;
}
