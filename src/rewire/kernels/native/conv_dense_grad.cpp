// Dense convolution: the gradient of the weights, as products of blocks of output channels and inputs.
#include <omp.h>

#include <cstring>

#include "conv_dense.hpp"
#include "scratch.hpp"
#include "simd.hpp"
#include "tuning.hpp"

namespace rewire {
namespace {

thread_local Scratch grad_memory;

// The first `count` floats, and zeros in the other lanes.
inline Vector load_partial(const float *from, int64_t count) {
    float part[WIDTH] = {};
    std::memcpy(part, from, sizeof(float) * size_t(count));
    return load<Vector>(part);
}

// grad_weight[r][c] += sum over the batch of grad_output[r] * input[c], for ROWS output channels and COLUMNS inputs.
template <int ROWS, int COLUMNS>
inline void add_outer_product(const float *grad_output, const float *const *input, int64_t batch, float *grad_weight,
                              int64_t row_stride) {
    Vector sum[ROWS][COLUMNS];
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = Vector{};
    int64_t n = 0;
    for (; n + WIDTH <= batch; n += WIDTH) {
        Vector grad[ROWS];
        UNROLL for (int r = 0; r < ROWS; r++) grad[r] = load<Vector>(grad_output + r * batch + n);
        UNROLL for (int c = 0; c < COLUMNS; c++) {
            const Vector x = load<Vector>(input[c] + n);
            UNROLL for (int r = 0; r < ROWS; r++) sum[r][c] += grad[r] * x;
        }
    }
    if (n < batch)
        for (int c = 0; c < COLUMNS; c++) {
            const Vector x = load_partial(input[c] + n, batch - n);
            for (int r = 0; r < ROWS; r++) sum[r][c] += x * load_partial(grad_output + r * batch + n, batch - n);
        }
    UNROLL for (int r = 0; r < ROWS; r++) {
        float *row = grad_weight + r * row_stride;
        if constexpr (COLUMNS == 4) {
            store<Quad>(row, load<Quad>(row) + horizontal_add(sum[r][0], sum[r][1], sum[r][2], sum[r][3]));
        } else {
            UNROLL for (int c = 0; c < COLUMNS; c++) row[c] += horizontal_add<Vector>(sum[r][c]);
        }
    }
}

// The contribution of one output pixel to the weights of ROWS output channels. `base`: the pixel's base in the input.
template <int ROWS>
inline void add_pixel(const DenseConv &conv, const float *grad_output, const float *base, int32_t y, int32_t x, int64_t batch,
                      float *grad_weight) {
    const ConvCsr &csr = conv.csr;
    for_each_tap_range(csr, y, x, [&](int32_t first_tap, int32_t end_tap) {
        const float *input[GRAD_COLUMNS];
        int pending = 0;  // a block may hold inputs of several taps: the first layer of a network has three channels
        for (int32_t tap = first_tap; tap < end_tap; tap++)
            for (int32_t c = 0; c < csr.in_channels; c++) {
                input[pending++] = base + (conv.tap_offset[tap] + int64_t(c)) * batch;
                if (pending < GRAD_COLUMNS) continue;
                float *to = grad_weight + int64_t(tap) * csr.in_channels + c - (GRAD_COLUMNS - 1);
                add_outer_product<ROWS, GRAD_COLUMNS>(grad_output, input, batch, to, conv.columns());
                pending = 0;
            }
        for (int i = 0; i < pending; i++) {
            float *to = grad_weight + int64_t(end_tap) * csr.in_channels - pending + i;
            add_outer_product<ROWS, 1>(grad_output, input + i, batch, to, conv.columns());
        }
    });
}

}  // namespace

// Every thread sums the gradients of all weights over its pixels; then those of the weights that exist are added up.
void dense_grad_values(const DenseConv &conv, const Positions &positions, const float *input, const float *grad_output,
                       float *grad_values, int64_t batch, int threads) {
    const ConvCsr &csr = conv.csr;
    const int64_t size = csr.out_channels * conv.columns();
    const int32_t pixels = csr.y.size * csr.x.size;
    float *all = grad_memory.take<float>(size * threads);  // [threads][out_channels][columns]
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t k = 0; k < size * threads; k++) all[k] = 0.f;
        float *own = all + size * omp_get_thread_num();
#pragma omp for schedule(static)
        for (int32_t pixel = 0; pixel < pixels; pixel++) {
            const int32_t y = pixel / csr.x.size, x = pixel % csr.x.size;
            const float *grad = grad_output + output_offset(csr, y, x, batch), *base = input + input_offset(csr, y, x, batch);
            int32_t row = 0;
            for (; row + GRAD_ROWS <= csr.out_channels; row += GRAD_ROWS)
                add_pixel<GRAD_ROWS>(conv, grad + row * batch, base, y, x, batch, own + row * conv.columns());
            for (; row < csr.out_channels; row++)
                add_pixel<1>(conv, grad + row * batch, base, y, x, batch, own + row * conv.columns());
        }
#pragma omp for schedule(static)
        for (int part = 0; part < threads; part++)
            positions.for_each(positions.nnz * part / threads, positions.nnz * (part + 1) / threads,
                               [&](int64_t k, int32_t output, int32_t channel, int32_t tap) {
                                   const int64_t at = output * conv.columns() + int64_t(tap) * csr.in_channels + channel;
                                   float total = 0;
                                   for (int thread = 0; thread < threads; thread++) total += all[at + thread * size];
                                   grad_values[k] = total;
                               });
    }
}

}  // namespace rewire
