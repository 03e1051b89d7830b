// Dense convolution: the output, and the gradient of the input (the same loop over the transpose).
#include "conv_dense.hpp"

#include <omp.h>

#include <cstring>
#include <vector>

#include "batch_kernels.hpp"
#include "batch_tile.hpp"
#include "channel_moments.hpp"
#include "scratch.hpp"

namespace rewire {
namespace {

constexpr int ROWS = DENSE_ROWS;
thread_local Scratch weight_memory, column_memory, moment_memory;

int64_t row_blocks(const DenseConv &conv) { return (conv.csr.out_channels + ROWS - 1) / ROWS; }

// The weights as [row block][tap][input channel][row of the block], with zeros where there is none.
const float *write_weights(const DenseConv &conv, const Positions &positions, const float *values, bool transposed,
                           const int32_t *tap_rank) {
    const int64_t size = row_blocks(conv) * conv.columns() * ROWS;
    float *weights = weight_memory.take<float>(size);
    std::memset(weights, 0, sizeof(float) * size);
    positions.for_each(0, positions.nnz, [&](int64_t k, int32_t output, int32_t input, int32_t tap) {
        const int32_t row = transposed ? input : output, channel = transposed ? output : input;
        const int64_t column = int64_t(tap_rank ? tap_rank[tap] : tap) * conv.csr.in_channels + channel;
        weights[((row / ROWS) * conv.columns() + column) * ROWS + row % ROWS] = values[k];
    });
    return weights;
}

// Copies what one output pixel reads for one tile of the batch (a column of im2col) into one dense array.
template <class Tile>
void pack_column(const DenseConv &conv, const float *input, int32_t y, int32_t x, int64_t batch, int64_t sample, float *to) {
    typedef typename Tile::Vec Vec;
    constexpr int VECTORS = Tile::vectors, LANES = lanes<Vec>;
    const ConvCsr &csr = conv.csr;
    const float *base = input + input_offset(csr, y, x, batch) + sample;
    for_each_tap_range(csr, y, x, [&](int32_t first_tap, int32_t end_tap) {
        for (int32_t tap = first_tap; tap < end_tap; tap++)
            for (int32_t c = 0; c < csr.in_channels; c++) {
                const float *from = base + (conv.tap_offset[tap] + int64_t(c)) * batch;
                float *here = to + (int64_t(tap) * csr.in_channels + c) * VECTORS * LANES;
                UNROLL for (int v = 0; v < VECTORS; v++) store<Vec>(here + v * LANES, load<Vec>(from + v * LANES));
            }
    });
}

// One block of rows: sum[row] += weights[row] . column.
template <class Tile>
inline void multiply_block(const DenseConv &conv, const float *weights, const float *column, int32_t y, int32_t x,
                           typename Tile::Vec (&sum)[ROWS][Tile::vectors]) {
    typedef typename Tile::Vec Vec;
    constexpr int VECTORS = Tile::vectors, LANES = lanes<Vec>;
    const int64_t channels = conv.csr.in_channels;
    for_each_tap_range(conv.csr, y, x, [&](int32_t first_tap, int32_t end_tap) {
        for (int64_t k = int64_t(first_tap) * channels, end = int64_t(end_tap) * channels; k < end; k++) {
            Vec read[VECTORS];
            UNROLL for (int v = 0; v < VECTORS; v++) read[v] = load<Vec>(column + (k * VECTORS + v) * LANES);
            UNROLL for (int r = 0; r < ROWS; r++) {
                const Vec weight = broadcast<Vec>(weights[k * ROWS + r]);
                UNROLL for (int v = 0; v < VECTORS; v++) sum[r][v] += weight * read[v];
            }
        }
    });
}

struct Output {
    float *data;
    const float *bias, *addend;  // null: none
    ClampRange range;
    bool relu, nontemporal;
};

// All rows of one output pixel, for one tile of the batch.
template <class Tile>
void multiply_tile(const DenseConv &conv, const float *weights, const float *input, const Output &output,
                   ChannelMoments *moments, int32_t y, int32_t x, int64_t batch, int64_t sample, int overlap) {
    typedef typename Tile::Vec Vec;
    constexpr int VECTORS = Tile::vectors, LANES = lanes<Vec>;
    const ConvCsr &csr = conv.csr;
    float *column = column_memory.take<float>(conv.columns() * VECTORS * LANES);
    pack_column<Tile>(conv, input, y, x, batch, sample, column);
    for (int64_t block = 0; block < row_blocks(conv); block++) {
        Vec sum[ROWS][VECTORS];
        UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int v = 0; v < VECTORS; v++) sum[r][v] = Vec{};
        multiply_block<Tile>(conv, weights + block * conv.columns() * ROWS, column, y, x, sum);
        for (int32_t r = 0; r < ROWS && block * ROWS + r < csr.out_channels; r++) {
            const int32_t row = int32_t(block * ROWS + r);
            Vec out[VECTORS];
            UNROLL for (int v = 0; v < VECTORS; v++) {
                out[v] = sum[r][v] + broadcast<Vec>(output.bias ? output.bias[row] : 0.f);
                if (output.relu)
                    out[v] = clamp<Vec>(out[v], broadcast<Vec>(output.range.low), broadcast<Vec>(output.range.high));
            }
            const int64_t at = output_offset(csr, y, x, batch) + row * batch + sample;
            if (output.addend)
                UNROLL for (int v = 0; v < VECTORS; v++) out[v] += load<Vec>(output.addend + at + v * LANES);
            if (moments) moments->add<Vec, VECTORS>(row, out, overlap);
            float *to = output.data + at;
            store_tile<Vec, VECTORS>(to, out, overlap, output.nontemporal);
        }
    }
}

void multiply(const DenseConv &conv, const float *weights, const float *input, const Output &output, char *moment_sums,
              int64_t batch, int threads) {
    const ConvCsr &csr = conv.csr;
    const int32_t pixels = csr.y.size * csr.x.size;
#pragma omp parallel num_threads(threads)
    {
        ChannelMoments moments(moment_sums, csr.out_channels, omp_get_thread_num());
#pragma omp for schedule(static)
        for (int32_t pixel = 0; pixel < pixels; pixel++)
            for_each_tile<DENSE_VECTORS>(batch, [&](auto tile, int64_t sample, int overlap) {
                multiply_tile<decltype(tile)>(conv, weights, input, output, moment_sums ? &moments : nullptr,
                                              pixel / csr.x.size, pixel % csr.x.size, batch, sample, overlap);
            });
        if (output.nontemporal) store_fence();
    }
}

}  // namespace
}  // namespace rewire

using namespace rewire;

// As rewire_conv_forward; `tap_offset` is that of the forward pass.
EXPORT void rewire_conv_dense_forward(const LayerShape *shape, const ConvCsr *forward, const int32_t *tap_offset,
                                      const void *positions, int is_int64, const float *input, const float *values,
                                      const float *bias, float *output, float *mean, float *variance, int64_t batch,
                                      int relu, float limit, int threads) {
    const ConvCsr &csr = *forward;
    const DenseConv conv{csr, tap_offset};
    const Positions nonzeros{positions, is_int64 != 0, *shape, csr.nnz};
    const float *weights = write_weights(conv, nonzeros, values, false, nullptr);
    const int64_t bytes = ChannelMoments::bytes(csr.out_channels) * threads;
    char *moments = mean ? moment_memory.take<char>(bytes) : nullptr;
    if (moments) std::memset(moments, 0, size_t(bytes));
    const bool nontemporal = use_nontemporal(output, int64_t(csr.y.size) * csr.x.size * csr.out_channels * batch, batch);
    const Output result{output, bias, nullptr, ClampRange(relu, limit), relu != 0, nontemporal};
    multiply(conv, weights, input, result, moments, batch, threads);
    if (mean) ChannelMoments::finish(moments, csr.out_channels, threads, mean, variance);
}
REGISTER(rewire_conv_dense_forward);

// As rewire_conv_backward. `tap_rank`: the order of the taps in the backward pass; `backward_tap_offset`: what they read there.
EXPORT void rewire_conv_dense_backward(const LayerShape *shape, const ConvCsr *forward, const ConvCsr *backward,
                                       const int32_t *tap_offset, const int32_t *tap_rank,
                                       const int32_t *backward_tap_offset, const void *positions, int is_int64,
                                       const float *input, const float *grad_output, const float *values,
                                       const float *addend, float *grad_input, float *grad_values, int64_t batch,
                                       int threads) {
    const Positions nonzeros{positions, is_int64 != 0, *shape, forward->nnz};
    if (grad_input) {
        const ConvCsr &csr = *backward;
        std::vector<int32_t> sorted_offset(csr.taps);
        for (int32_t tap = 0; tap < csr.taps; tap++) sorted_offset[tap_rank[tap]] = backward_tap_offset[tap];
        const DenseConv conv{csr, sorted_offset.data()};
        const int64_t size = int64_t(csr.y.size) * csr.x.size * csr.out_channels * batch;
        const bool nontemporal = use_nontemporal(grad_input, size, batch);
        const Output result{grad_input, nullptr, addend, ClampRange(0, 0.f), false, nontemporal};
        const float *weights = write_weights(conv, nonzeros, values, true, tap_rank);
        multiply(conv, weights, grad_output, result, nullptr, batch, threads);
    }
    if (grad_values)
        dense_grad_values(DenseConv{*forward, tap_offset}, nonzeros, input, grad_output, grad_values, batch, threads);
}
REGISTER(rewire_conv_dense_backward);
