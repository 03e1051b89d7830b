// The geometry of im2col tiles, and packing them.
#include "im2col_tile.hpp"

#include <algorithm>
#include <cstring>

#include "scratch.hpp"

namespace rewire {
namespace {

thread_local Scratch offset_memory;

// The pixels of an axis in groups of one phase each.
std::vector<PixelGroup> group_pixels(const Axis &axis, int32_t max_count) {
    const int32_t phases = 1 + *std::max_element(axis.phase, axis.phase + axis.size);
    std::vector<PixelGroup> groups;
    for (int32_t phase = 0; phase < phases; phase++) {
        const int32_t first = int32_t(std::find(axis.phase, axis.phase + axis.size, phase) - axis.phase);
        for (int32_t at = first; at < axis.size; at += max_count * phases)
            groups.push_back({at, std::min(max_count, (axis.size - at + phases - 1) / phases), phases});
    }
    return groups;
}

// Input pixels along an axis that `count` pixels of a group read, given the offsets of all taps.
int32_t tile_extent(const Axis &axis, const std::vector<PixelGroup> &groups, int32_t count, const int32_t *offsets,
                    int32_t taps) {
    int32_t stride = 0;
    for (const PixelGroup &group : groups) stride = std::max(stride, group.read_stride(axis));
    return *std::max_element(offsets, offsets + taps) - *std::min_element(offsets, offsets + taps) + 1 + stride * (count - 1);
}

}  // namespace

Im2colTiling::Im2colTiling(const ConvCsr &csr_, int32_t accumulators) : csr(csr_), group_width(accumulators / TILE_VECTORS) {
    const int64_t row_bytes = int64_t(csr.out_channels) * group_width * TILE_BATCH * sizeof(float);  // of partial sums
    y_groups = group_pixels(csr.y, std::clamp(int32_t(PARTIAL_SUM_BYTES / row_bytes), 1, MAX_GROUP_HEIGHT));
    x_groups = group_pixels(csr.x, group_width);
    group_height = 0;
    for (const PixelGroup &group : y_groups) group_height = std::max(group_height, group.count);
    min_dy = *std::min_element(csr.tap_dy, csr.tap_dy + csr.taps);
    min_dx = *std::min_element(csr.tap_dx, csr.tap_dx + csr.taps);
    height = tile_extent(csr.y, y_groups, group_height, csr.tap_dy, csr.taps);
    // The inner loops always read group_width pixels, even if a phase of a strided convolution has fewer.
    width = tile_extent(csr.x, x_groups, group_width, csr.tap_dx, csr.taps);
    channels = 0;
    for (int32_t block = 0; block < csr.col_blocks; block++)
        channels = std::max(channels, first_channel(block + 1) - first_channel(block));
}

TileOffsets::TileOffsets(const Im2colTiling &tiling, int threads)
    : tile_offsets(tiling.csr.col_idx), is_col_idx(tiling.csr.taps == 1) {
    if (is_col_idx) return;
    const ConvCsr &csr = tiling.csr;
    int32_t *offsets = offset_memory.take<int32_t>(csr.nnz);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int32_t row = 0; row < csr.out_channels; row++)
        for (int32_t block = 0; block < csr.col_blocks; block++) {
            const int32_t *tap_ptr = csr.tap_ptr(row, block);
            const int32_t row_base = (csr.row_base ? csr.row_base[row] : 0) - tiling.first_channel(block);
            for (int32_t tap = 0; tap < csr.taps; tap++) {
                const int32_t dy = csr.tap_dy[tap], dx = csr.tap_dx[tap];
                const int32_t in_activation = (dy * csr.in_width + dx) * csr.in_channels;
                const int32_t in_tile = ((dy - tiling.min_dy) * tiling.width + dx - tiling.min_dx) * tiling.channels;
                for (int32_t k = tap_ptr[tap]; k < tap_ptr[tap + 1]; k++)
                    offsets[k] = csr.col_idx[k] + row_base - in_activation + in_tile;
            }
        }
    tile_offsets = offsets;
}

void pack_tile(const Im2colTiling &tiling, const float *input, const TilePosition &position, int32_t block, int64_t batch,
               float *tile) {
    const ConvCsr &csr = tiling.csr;
    const int32_t first = tiling.first_channel(block), count = tiling.first_channel(block + 1) - first;
    const int32_t top = csr.y.base[position.y.first] + tiling.min_dy, left = csr.x.base[position.x.first] + tiling.min_dx;
    const bool more_samples = position.sample + 2 * TILE_BATCH <= batch;
    // Rows outside of the activation are not written: their taps are left out, columns outside are zeros.
    for (int32_t i = std::max(0, -top); i < std::min(tiling.height, csr.in_height - top); i++)
        for (int32_t j = 0; j < tiling.width; j++) {
            float *to = tile + i * tiling.row_size() + j * tiling.pixel_size();
            if (left + j < 0 || left + j >= csr.in_width) {
                std::memset(to, 0, sizeof(float) * size_t(count * TILE_BATCH));
                continue;
            }
            const int64_t pixel = int64_t(top + i) * csr.in_width + left + j;
            const float *from = input + (pixel * csr.in_channels + first) * batch + position.sample;
            for (int32_t c = 0; c < count; c++, from += batch, to += TILE_BATCH) {
                UNROLL for (int v = 0; v < TILE_VECTORS; v++) store<Vector>(to + v * WIDTH, load<Vector>(from + v * WIDTH));
                if (more_samples) __builtin_prefetch(from + TILE_BATCH, 0, 2);
            }
        }
}

bool use_im2col(const ConvCsr &csr, int64_t batch, int32_t accumulators) {
    return batch % TILE_BATCH == 0 && csr.x.size >= accumulators / TILE_VECTORS &&
           (csr.taps > 1 || csr.nnz >= IM2COL_MIN_ROW_NNZ * int64_t(csr.out_channels));
}

}  // namespace rewire
