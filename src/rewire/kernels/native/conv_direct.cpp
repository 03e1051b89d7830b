// Sparse convolution, read directly from the activation: for every output pixel and channel, each non-zero weight multiplies
// one contiguous vector of the batch, and the sums stay in registers. For batches of any size, and for layers where packing
// an im2col tile would not pay.
#include <omp.h>

#include "batch_tile.hpp"
#include "channel_moments.hpp"
#include "conv_args.hpp"

namespace rewire {
namespace {

// The rows [row_begin, row_end) of one output pixel and column block, for one tile of the batch:
// output[row] += sum over the row's non-zeros k of values[k] * input[col_idx[k]], where k runs over this column block and the
// taps that stay inside of the input. The first column block starts from the bias, the others from the sum so far.
template <class Tile>
inline void forward_tile(const ForwardArgs &args, ChannelMoments *moments, int32_t y, int32_t x, int32_t block,
                         int32_t row_begin, int32_t row_end, int64_t sample, int overlap, const Prefetcher *prefetcher) {
    typedef typename Tile::Vec Vec;
    constexpr int VECTORS = Tile::vectors, LANES = lanes<Vec>;
    const ConvCsr &csr = args.csr;
    const float *input = args.input + input_offset(csr, y, x, args.batch) + sample;
    float *output = args.output + output_offset(csr, y, x, args.batch) + sample;
    const bool last_block = block == csr.col_blocks - 1;
    for (int32_t row = row_begin; row < row_end; row++) {
        if (prefetcher) prefetcher->prefetch_share(csr, row, args.batch);
        Vec sum[VECTORS];
        float *out_row = output + row * args.batch;
        const Vec bias = broadcast<Vec>(args.bias ? args.bias[row] : 0.f);
        UNROLL for (int v = 0; v < VECTORS; v++) sum[v] = block ? load<Vec>(out_row + v * LANES) : bias;
        const float *row_input = input + (csr.row_base ? csr.row_base[row] * args.batch : 0);
        const int32_t *tap_ptr = csr.tap_ptr(row, block);
        for_each_tap_range(csr, y, x, [&](int32_t first_tap, int32_t end_tap) {
            for (int32_t k = tap_ptr[first_tap], end = tap_ptr[end_tap]; k < end; k++) {
                const float *read = row_input + csr.col_idx[k] * args.batch;
                const Vec value = broadcast<Vec>(args.values[k]);
                UNROLL for (int v = 0; v < VECTORS; v++) sum[v] += value * load<Vec>(read + v * LANES);
            }
        });
        if (last_block && args.relu) {
            const Vec low = broadcast<Vec>(args.range.low), high = broadcast<Vec>(args.range.high);
            UNROLL for (int v = 0; v < VECTORS; v++) sum[v] = clamp<Vec>(sum[v], low, high);
        }
        if (last_block && moments) moments->add<Vec, VECTORS>(row, sum, overlap);
        store_tile<Vec, VECTORS>(out_row, sum, overlap, args.nontemporal && csr.col_blocks == 1);
    }
}

// The same over the transpose. Each vector of the output's gradient is loaded once and used twice: times the weight for the
// gradient of the input, and times the input for the gradient of the weight.
template <bool GRAD_INPUT, bool GRAD_VALUES, class Tile>
inline void backward_tile(const BackwardArgs &args, float *grad_values, int32_t y, int32_t x, int32_t block,
                          int32_t row_begin, int32_t row_end, int64_t sample, int overlap, const Prefetcher *prefetcher) {
    typedef typename Tile::Vec Vec;
    constexpr int VECTORS = Tile::vectors, LANES = lanes<Vec>;
    const ConvCsr &csr = args.csr;
    const float *grad_output = args.grad_output + input_offset(csr, y, x, args.batch) + sample;
    const int64_t pixel = output_offset(csr, y, x, args.batch) + sample;
    for (int32_t row = row_begin; row < row_end; row++) {
        if (prefetcher) prefetcher->prefetch_share(csr, row, args.batch);
        Vec sum[VECTORS], input[VECTORS];
        float *out_row = args.grad_input + pixel + row * args.batch;
        const float *start = block ? out_row : args.addend ? args.addend + pixel + row * args.batch : nullptr;
        UNROLL for (int v = 0; v < VECTORS; v++) {
            if constexpr (GRAD_INPUT) sum[v] = start ? load<Vec>(start + v * LANES) : Vec{};
            if constexpr (GRAD_VALUES) input[v] = load<Vec>(args.input + pixel + row * args.batch + v * LANES);
        }
        if constexpr (GRAD_VALUES && !std::is_same_v<Vec, float>) {
            for (int lane = 0; lane < overlap; lane++) input[0][lane] = 0.f;  // the tile before has counted these
        }
        auto products = [&](int32_t k) {
            const float *read = grad_output + csr.col_idx[k] * args.batch;
            const Vec value = GRAD_INPUT ? broadcast<Vec>(args.values[k]) : Vec{};
            Vec product{};
            UNROLL for (int v = 0; v < VECTORS; v++) {
                const Vec grad = load<Vec>(read + v * LANES);
                if constexpr (GRAD_INPUT) sum[v] += value * grad;
                if constexpr (GRAD_VALUES) product += grad * input[v];
            }
            return product;
        };
        const int32_t *tap_ptr = csr.tap_ptr(row, block);
        for_each_tap_range(csr, y, x, [&](int32_t first_tap, int32_t end_tap) {
            accumulate_grad_values<GRAD_VALUES, Vec>(tap_ptr[first_tap], tap_ptr[end_tap], grad_values, products);
        });
        if constexpr (GRAD_INPUT)
            store_tile<Vec, VECTORS>(out_row, sum, overlap, args.nontemporal && csr.col_blocks == 1);
    }
}

template <bool GRAD_INPUT, bool GRAD_VALUES> void backward(const BackwardArgs &args, const WorkSplit &split) {
    const ConvCsr &csr = args.csr;
#pragma omp parallel num_threads(split.threads)
    {
        float *grad_values = args.grad_buffer(omp_get_thread_num() % split.grad_buffers());
        split.for_each(csr.out_channels, [&](int32_t pixel, int32_t first_row, int32_t end_row) {
            const int32_t y = pixel / csr.x.size, x = pixel % csr.x.size;
            const Prefetcher next(csr, args.grad_output, GRAD_VALUES ? args.input : nullptr, y, x, args.batch);
            for_each_row_block(csr, first_row, end_row, args.batch, [&](int32_t block, int32_t from, int32_t to) {
                for_each_tile<BACKWARD_TILE>(args.batch, [&](auto tile, int64_t sample, int overlap) {
                    const Prefetcher *now = sample == 0 && block == 0 && split.row_parts == 1 ? &next : nullptr;
                    backward_tile<GRAD_INPUT, GRAD_VALUES, decltype(tile)>(args, grad_values, y, x, block, from, to, sample,
                                                                           overlap, now);
                });
            });
        });
        if (args.nontemporal) store_fence();
    }
}

}  // namespace

void direct_forward(const ForwardArgs &args, const WorkSplit &split) {
    const ConvCsr &csr = args.csr;
#pragma omp parallel num_threads(split.threads)
    {
        ChannelMoments moments(args.moments, csr.out_channels, omp_get_thread_num());
        split.for_each(csr.out_channels, [&](int32_t pixel, int32_t first_row, int32_t end_row) {
            const int32_t y = pixel / csr.x.size, x = pixel % csr.x.size;
            const Prefetcher next(csr, args.input, nullptr, y, x, args.batch);
            for_each_row_block(csr, first_row, end_row, args.batch, [&](int32_t block, int32_t from, int32_t to) {
                for_each_tile<FORWARD_TILE>(args.batch, [&](auto tile, int64_t sample, int overlap) {
                    const Prefetcher *now = sample == 0 && block == 0 && split.row_parts == 1 ? &next : nullptr;
                    forward_tile<decltype(tile)>(args, args.moments ? &moments : nullptr, y, x, block, from, to, sample,
                                                 overlap, now);
                });
            });
        });
        if (args.nontemporal) store_fence();
    }
}

void direct_backward(const BackwardArgs &args, const WorkSplit &split) {
    dispatch_grads(args, [&](auto grad_input, auto grad_values) {
        backward<grad_input.value, grad_values.value>(args, split);
    });
}

}  // namespace rewire
