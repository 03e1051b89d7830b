// Sparse convolution with im2col tiles: the sums of conv_direct.cpp, for several neighbouring output pixels at once, so that
// each weight that is loaded multiplies all of them.
#include <omp.h>

#include "batch_tile.hpp"
#include "channel_moments.hpp"
#include "im2col_tile.hpp"
#include "scratch.hpp"

namespace rewire {
namespace {

thread_local Scratch tile_memory, partial_sum_memory;

// The taps that a row of output pixels uses. Columns outside of the activation are zeros in the tile; rows are left out.
struct TapRange {
    int32_t first, end;
    TapRange(const ConvCsr &csr, int32_t y, int32_t x) {
        const int32_t width = csr.phase_width[csr.x.phase[x]];
        const int32_t first_tap = csr.phase_first_tap[csr.y.phase[y] * csr.x_phases + csr.x.phase[x]];
        first = first_tap + csr.y.tap_begin[y] * width, end = first_tap + csr.y.tap_end[y] * width;
    }
};

// What the inner loops below need, and no more. They are not inlined: inside of the parallel region GCC runs out of registers
// and keeps the loop counters in memory.
struct TileJob {
    const Im2colTiling &tiling;
    const TileOffsets &offsets;
    const TilePosition &position;
    const float *tile;
    float *partial_sums;  // [group_height][out_channels][group_width][TILE_BATCH] for the next column block
    int32_t block, row_begin, row_end;
    int64_t x_stride = position.x.read_stride(tiling.csr.x) * tiling.pixel_size();  // in the tile, between the pixels
    int64_t y_stride = position.y.read_stride(tiling.csr.y) * tiling.row_size();    // of the group

    bool is_last_block() const { return block == tiling.csr.col_blocks - 1; }
    float *saved_sums(int32_t i, int32_t row) const {
        return partial_sums + (int64_t(i) * tiling.csr.out_channels + row) * tiling.group_width * TILE_BATCH;
    }
    const float *tile_row(int32_t i, int32_t row) const {
        return tile + i * y_stride + offsets.row_base(tiling, row, block) * TILE_BATCH;
    }
};

// One tile: PIXELS output pixels side by side, in every row of the group, for the output channels of the job.
template <int PIXELS>
__attribute__((noinline)) void forward_tile(const ForwardArgs &args, const TileJob &job, ChannelMoments *moments) {
    constexpr int VECTORS = TILE_VECTORS;
    const ConvCsr &csr = args.csr;
    const TilePosition &position = job.position;
    const float *values = args.values;
    const int32_t *tile_offsets = job.offsets.tile_offsets;
    for (int32_t i = 0; i < position.y.count; i++) {
        const int32_t y = position.y.pixel(i);
        const TapRange taps(csr, y, position.x.first);
        for (int32_t row = job.row_begin; row < job.row_end; row++) {
            Vector sum[PIXELS][VECTORS];
            float *saved = job.saved_sums(i, row);
            const Vector bias = broadcast<Vector>(args.bias ? args.bias[row] : 0.f);
            UNROLL for (int n = 0; n < PIXELS * VECTORS; n++)
                sum[n / VECTORS][n % VECTORS] = job.block ? load<Vector>(saved + n * WIDTH) : bias;
            const float *pixel[PIXELS];
            UNROLL for (int p = 0; p < PIXELS; p++) pixel[p] = job.tile_row(i, row) + p * job.x_stride;
            const int32_t *tap_ptr = csr.tap_ptr(row, job.block), *offset = tile_offsets + tap_ptr[taps.first];
            const float *value = values + tap_ptr[taps.first], *end = values + tap_ptr[taps.end];
            for (; value < end; value++) {
                const int64_t at = int64_t(*offset++) * TILE_BATCH;
                const Vector weight = broadcast<Vector>(*value);
                UNROLL for (int p = 0; p < PIXELS; p++)
                    UNROLL for (int v = 0; v < VECTORS; v++) sum[p][v] += weight * load<Vector>(pixel[p] + at + v * WIDTH);
            }
            if (!job.is_last_block()) {
                UNROLL for (int n = 0; n < PIXELS * VECTORS; n++)
                    store<Vector>(saved + n * WIDTH, sum[n / VECTORS][n % VECTORS]);
                continue;
            }
            if (args.relu) {
                const Vector low = broadcast<Vector>(args.range.low), high = broadcast<Vector>(args.range.high);
                UNROLL for (int n = 0; n < PIXELS * VECTORS; n++)
                    sum[n / VECTORS][n % VECTORS] = clamp<Vector>(sum[n / VECTORS][n % VECTORS], low, high);
            }
            for (int32_t p = 0; p < PIXELS && p < position.x.count; p++) {
                if (moments) moments->add<Vector, VECTORS>(row, sum[p], 0);
                float *to = args.output + output_offset(csr, y, position.x.pixel(p), args.batch) + row * args.batch +
                            position.sample;
                store_tile<Vector, VECTORS>(to, sum[p], 0, args.nontemporal);
            }
        }
    }
}

// The same over the transpose. As in conv_direct.cpp, each vector of the gradient that is loaded is used twice.
template <int PIXELS, bool GRAD_INPUT, bool GRAD_VALUES>
__attribute__((noinline)) void backward_tile(const BackwardArgs &args, const TileJob &job, float *grad_values) {
    constexpr int VECTORS = TILE_VECTORS;
    const ConvCsr &csr = args.csr;
    const TilePosition &position = job.position;
    const int64_t x_stride = job.x_stride;
    const float *values = args.values;
    const int32_t *tile_offsets = job.offsets.tile_offsets;
    for (int32_t i = 0; i < position.y.count; i++) {
        const int32_t y = position.y.pixel(i);
        const TapRange taps(csr, y, position.x.first);
        const int64_t first_pixel = output_offset(csr, y, position.x.first, args.batch) + position.sample;
        const int64_t pixel_stride = int64_t(position.x.step) * csr.out_channels * args.batch;
        for (int32_t row = job.row_begin; row < job.row_end; row++) {
            Vector sum[PIXELS][VECTORS], input[PIXELS][VECTORS];
            float *saved = job.saved_sums(i, row);
            const float *in_row = args.input + first_pixel + row * args.batch;
            const float *start = args.addend && !job.block ? args.addend + first_pixel + row * args.batch : nullptr;
            UNROLL for (int p = 0; p < PIXELS; p++) UNROLL for (int v = 0; v < VECTORS; v++) {
                if constexpr (GRAD_INPUT) {
                    sum[p][v] = job.block ? load<Vector>(saved + (p * VECTORS + v) * WIDTH) : Vector{};
                    if (start && p < position.x.count) sum[p][v] = load<Vector>(start + p * pixel_stride + v * WIDTH);
                }
                if constexpr (GRAD_VALUES)
                    input[p][v] = p < position.x.count ? load<Vector>(in_row + p * pixel_stride + v * WIDTH) : Vector{};
            }
            const float *tile = job.tile_row(i, row);
            auto products = [&](int32_t k) {
                const float *read = tile + int64_t(tile_offsets[k]) * TILE_BATCH;
                const Vector value = GRAD_INPUT ? broadcast<Vector>(values[k]) : Vector{};
                Vector product{};
                UNROLL for (int p = 0; p < PIXELS; p++) UNROLL for (int v = 0; v < VECTORS; v++) {
                    const Vector grad = load<Vector>(read + p * x_stride + v * WIDTH);
                    if constexpr (GRAD_INPUT) sum[p][v] += value * grad;
                    if constexpr (GRAD_VALUES) product += grad * input[p][v];
                }
                return product;
            };
            const int32_t *tap_ptr = csr.tap_ptr(row, job.block);
            accumulate_grad_values<GRAD_VALUES, Vector>(tap_ptr[taps.first], tap_ptr[taps.end], grad_values, products);
            if constexpr (!GRAD_INPUT) continue;
            if (!job.is_last_block()) {
                UNROLL for (int n = 0; n < PIXELS * VECTORS; n++)
                    store<Vector>(saved + n * WIDTH, sum[n / VECTORS][n % VECTORS]);
                continue;
            }
            for (int32_t p = 0; p < PIXELS && p < position.x.count; p++) {
                float *to = args.grad_input + first_pixel + p * pixel_stride + row * args.batch;
                store_tile<Vector, VECTORS>(to, sum[p], 0, args.nontemporal);
            }
        }
    }
}

// Packs tile after tile of `input` and calls work(job) on it. To be called by every thread of a parallel region.
template <class Work>
void for_each_tile_job(const Im2colTiling &tiling, const TileOffsets &offsets, const float *input, int64_t batch,
                       const WorkSplit &split, Work work) {
    const ConvCsr &csr = tiling.csr;
    float *tile = tile_memory.take<float>(tiling.size());
    const int64_t sums = int64_t(tiling.group_height) * csr.out_channels * tiling.group_width * TILE_BATCH;
    float *partial_sums = partial_sum_memory.take<float>(csr.col_blocks > 1 ? sums : 0);
    const int32_t columns = int32_t(tiling.x_groups.size());
    split.for_each(csr.out_channels, [&](int32_t group, int32_t row_begin, int32_t row_end) {
        for (int64_t sample = 0; sample < batch; sample += TILE_BATCH)
            for (int32_t block = 0; block < csr.col_blocks; block++) {
                const TilePosition position{tiling.y_groups[group / columns], tiling.x_groups[group % columns], sample};
                pack_tile(tiling, input, position, block, batch, tile);
                work(TileJob{tiling, offsets, position, tile, partial_sums, block, row_begin, row_end});
            }
    });
}

template <bool GRAD_INPUT, bool GRAD_VALUES>
void backward(const BackwardArgs &args, const Im2colTiling &tiling, const WorkSplit &split) {
    const TileOffsets offsets(tiling, split.threads);
#pragma omp parallel num_threads(split.threads)
    {
        float *grad_values = args.grad_buffer(omp_get_thread_num() % split.grad_buffers());
        for_each_tile_job(tiling, offsets, args.grad_output, args.batch, split, [&](const TileJob &job) {
            backward_tile<BACKWARD_TILE / TILE_VECTORS, GRAD_INPUT, GRAD_VALUES>(args, job, grad_values);
        });
        if (args.nontemporal) store_fence();
    }
}

}  // namespace

void im2col_forward(const ForwardArgs &args, const Im2colTiling &tiling, const WorkSplit &split) {
    const TileOffsets offsets(tiling, split.threads);
#pragma omp parallel num_threads(split.threads)
    {
        ChannelMoments moments(args.moments, args.csr.out_channels, omp_get_thread_num());
        for_each_tile_job(tiling, offsets, args.input, args.batch, split, [&](const TileJob &job) {
            forward_tile<FORWARD_TILE / TILE_VECTORS>(args, job, args.moments ? &moments : nullptr);
        });
        if (args.nontemporal) store_fence();
    }
}

void im2col_backward(const BackwardArgs &args, const Im2colTiling &tiling, const WorkSplit &split) {
    dispatch_grads(args, [&](auto grad_input, auto grad_values) {
        backward<grad_input.value, grad_values.value>(args, tiling, split);
    });
}

}  // namespace rewire
