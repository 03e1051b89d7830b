// Sparse linear and convolution layers over batch-innermost maps. Nothing is computed for a weight that does not exist.
#include <cstring>
#include <optional>

#include "moments.hpp"
#include "passes.hpp"
#include "scratch.hpp"
#include "tables.hpp"
#include "windows.hpp"

using namespace rewire;

namespace {

thread_local Scratch sorted_values, sorted_offsets, sorted_begin, gradients, moments_memory;

}  // namespace

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
    const int64_t pixels = int64_t(g.y.size) * g.x.size;
    std::optional<Windows> windows;
    if (layer->groups == 1 && fits_windows(g, batch, FORWARD_TILE)) windows.emplace(g, FORWARD_TILE);
    const Division division(g, batch, windows ? windows->groups() : pixels, threads);
    const int64_t size = Moments::bytes(g.rows) * division.threads;
    char *memory = mean ? moments_memory.take<char>(size) : nullptr;
    if (memory) std::memset(memory, 0, size_t(size));
    const bool streamed = is_streamed(output, pixels * g.rows * batch, batch);
    const Outward f{g, input, values, bias, output, memory, batch, Range(active, limit), active != 0, streamed};
    windows ? windows_forward(f, *windows, division) : direct_forward(f, division);
    if (mean) Moments::finish(memory, g.rows, division.threads, mean, variance);
}

// The gradients of the input and of the values; either may be null. `gather` is that of the backward pass.
EXPORT void rewire_backward(const Gather *gather, const float *input, const float *grad, const float *values,
                            float *grad_input, float *grad_values, int64_t batch, int threads) {
    const Gather &g = *gather;
    const int64_t pixels = int64_t(g.y.size) * g.x.size;
    std::optional<Windows> windows;
    if (fits_windows(g, batch, BACKWARD_TILE)) windows.emplace(g, BACKWARD_TILE);
    const Division division(g, batch, windows ? windows->groups() : pixels, threads);
    const int count = grad_values ? division.buffers() : 0;
    float *sorted = sorted_values.take<float>(g.nnz), *buffers = gradients.take<float>(g.nnz * count);
#pragma omp parallel for num_threads(division.threads) schedule(static)
    for (int64_t k = 0; k < g.nnz; k++) {
        sorted[k] = values[g.index[k]];
        for (int one = 0; one < count; one++) buffers[k + one * g.nnz] = 0.f;
    }
    const bool streamed = grad_input && is_streamed(grad_input, pixels * g.rows * batch, batch);
    const Inward b{g, input, grad, sorted, grad_input, grad_values ? buffers : nullptr, batch, streamed};
    windows ? windows_backward(b, *windows, division) : direct_backward(b, division);
    if (!grad_values) return;
#pragma omp parallel for num_threads(division.threads) schedule(static)
    for (int64_t k = 0; k < g.nnz; k++) {
        float total = buffers[k];
        for (int other = 1; other < count; other++) total += buffers[k + other * g.nnz];
        grad_values[g.index[k]] = total;
    }
}

// The instruction set that this file was compiled for is `1`, if the processor has it. Asked of the baseline only.
EXPORT int rewire_supports(int level) {
#if defined(__x86_64__) || defined(__i386__)
    if (level == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (level == 2) return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
#endif
    return level == 0;
}
