// Sparse linear layers and convolutions: chooses the direct way or im2col tiles, and prepares what both need. The inner loops
// are in conv_direct.cpp and conv_im2col.cpp.
#include <cstring>
#include <optional>

#include "batch_kernels.hpp"
#include "batch_tile.hpp"
#include "channel_moments.hpp"
#include "conv_args.hpp"
#include "im2col_tile.hpp"
#include "scratch.hpp"

using namespace rewire;

namespace {

thread_local Scratch value_memory, col_idx_memory, row_ptr_memory, grad_memory, moment_memory;

}  // namespace

// output[y][x][row] = bias[row] + sum of value * input, then clamped to [0, limit] if `relu`. `bias` may be null.
// If `mean` is not null, `mean` and `variance` receive the moments of every output channel.
//
// A CSR without column indices gets them here: for a 1x1 kernel the positions are the column indices (`row_base` takes off
// the row's own start); for any other kernel the non-zeros are sorted by tap first.
EXPORT void rewire_conv_forward(const LayerShape *shape, const ForwardCsr *forward, const ConvCsr *conv, const void *positions,
                                int is_int64, const float *input, const float *values, const float *bias, float *output,
                                float *mean, float *variance, int64_t batch, int relu, float limit, int threads) {
    ConvCsr csr = *conv;
    if (!csr.col_idx && csr.taps == 1 && !is_int64) {
        csr.row_ptr = forward->row_ptr;
        csr.col_idx = static_cast<const int32_t *>(positions);
    } else if (!csr.col_idx) {
        int32_t *row_ptr = row_ptr_memory.take<int32_t>(int64_t(csr.out_channels) * csr.col_blocks * csr.taps + 1);
        int32_t *col_idx = col_idx_memory.take<int32_t>(csr.nnz);
        float *sorted = value_memory.take<float>(csr.nnz);
        const int team = csr.nnz < SORT_THREADS_NNZ ? 1 : threads;
        if (is_int64)
            sort_by_tap(*shape, *forward, static_cast<const int64_t *>(positions), values, row_ptr, col_idx, sorted, team);
        else sort_by_tap(*shape, *forward, static_cast<const int32_t *>(positions), values, row_ptr, col_idx, sorted, team);
        csr.row_ptr = row_ptr, csr.col_idx = col_idx, csr.row_base = nullptr, values = sorted;
    }
    const int64_t pixels = int64_t(csr.y.size) * csr.x.size;
    std::optional<Im2colTiling> tiling;
    if (shape->groups == 1 && use_im2col(csr, batch, FORWARD_TILE)) tiling.emplace(csr, FORWARD_TILE);
    const WorkSplit split(csr, batch, tiling ? tiling->groups() : pixels, threads);
    const int64_t bytes = ChannelMoments::bytes(csr.out_channels) * split.threads;
    char *moments = mean ? moment_memory.take<char>(bytes) : nullptr;
    if (moments) std::memset(moments, 0, size_t(bytes));
    const bool nontemporal = use_nontemporal(output, pixels * csr.out_channels * batch, batch);
    const ForwardArgs args{csr, input, values, bias, output, moments, batch, ClampRange(relu, limit), relu != 0, nontemporal};
    tiling ? im2col_forward(args, *tiling, split) : direct_forward(args, split);
    if (mean) ChannelMoments::finish(moments, csr.out_channels, split.threads, mean, variance);
}
REGISTER(rewire_conv_forward);

// The gradients of the input and of the values; either may be null. `conv` is the transpose. `addend`, unless it is null, is
// added to the gradient of the input; both may be the same array.
EXPORT void rewire_conv_backward(const ConvCsr *conv, const float *input, const float *grad_output, const float *values,
                                 const float *addend, float *grad_input, float *grad_values, int64_t batch, int threads) {
    const ConvCsr &csr = *conv;
    const int64_t pixels = int64_t(csr.y.size) * csr.x.size;
    std::optional<Im2colTiling> tiling;
    if (use_im2col(csr, batch, BACKWARD_TILE)) tiling.emplace(csr, BACKWARD_TILE);
    const WorkSplit split(csr, batch, tiling ? tiling->groups() : pixels, threads);
    const int count = grad_values ? split.grad_buffers() : 0;
    float *sorted = value_memory.take<float>(csr.nnz), *buffers = grad_memory.take<float>(csr.nnz * count);
#pragma omp parallel for num_threads(split.threads) schedule(static)
    for (int64_t k = 0; k < csr.nnz; k++) {
        sorted[k] = values[csr.perm[k]];
        for (int buffer = 0; buffer < count; buffer++) buffers[k + buffer * csr.nnz] = 0.f;
    }
    const bool nontemporal = grad_input && use_nontemporal(grad_input, pixels * csr.out_channels * batch, batch);
    const BackwardArgs args{csr,    input,      grad_output, sorted, addend, grad_input, grad_values ? buffers : nullptr,
                            batch,  nontemporal};
    tiling ? im2col_backward(args, *tiling, split) : direct_backward(args, split);
    if (!grad_values) return;
#pragma omp parallel for num_threads(split.threads) schedule(static)
    for (int64_t k = 0; k < csr.nnz; k++) {
        float total = buffers[k];
        for (int buffer = 1; buffer < count; buffer++) total += buffers[k + buffer * csr.nnz];
        grad_values[csr.perm[k]] = total;
    }
}
REGISTER(rewire_conv_backward);
