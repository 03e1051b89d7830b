// im2col tiles: the part of an activation that a few neighbouring output pixels read, packed into one dense array, one column
// block at a time. Unlike a full im2col matrix, a tile holds every pixel once; the taps address it by their offset.
//
// Why pack: in the activation itself, the vectors of the batch that a tile reads lie a power of two apart, so they compete for
// few sets of the cache. The tile is dense, holds zeros for columns outside of the activation, and serves every output channel.
#pragma once
#include <vector>

#include "conv_args.hpp"
#include "conv_csr.hpp"
#include "tuning.hpp"

namespace rewire {

// Output pixels along one axis that have the same phase: `count` of them, `step` apart.
struct PixelGroup {
    int32_t first, count, step;
    int32_t pixel(int32_t i) const { return first + i * step; }

    // Input pixels between what two neighbours of the group read.
    int32_t read_stride(const Axis &axis) const { return count > 1 ? axis.base[pixel(1)] - axis.base[first] : 0; }
};

// How the output is divided into groups of pixels, and the size of the tile that a group reads.
struct Im2colTiling {
    const ConvCsr &csr;
    int32_t group_width, group_height;        // output pixels of a group at most
    int32_t min_dy, min_dx;                   // the smallest offsets of any tap
    int32_t height, width, channels;          // of a tile: pixels, and the channels of the largest column block
    std::vector<PixelGroup> y_groups, x_groups;

    // For kernels that keep `accumulators` vectors per output channel.
    Im2colTiling(const ConvCsr &csr, int32_t accumulators);

    int64_t groups() const { return int64_t(y_groups.size() * x_groups.size()); }
    int64_t pixel_size() const { return channels * TILE_BATCH; }  // floats
    int64_t row_size() const { return width * pixel_size(); }
    int64_t size() const { return height * row_size(); }
    int32_t first_channel(int32_t block) const {
        return int32_t((int64_t(block) * csr.in_channels + csr.col_blocks - 1) / csr.col_blocks);
    }
};

// Column indices that address a tile instead of the activation.
struct TileOffsets {
    const int32_t *tile_offsets;  // [nnz]
    bool is_col_idx;              // a 1x1 kernel uses its column indices as they are

    TileOffsets(const Im2colTiling &tiling, int threads);

    // To be added to the offsets of a row and column block.
    int64_t row_base(const Im2colTiling &tiling, int32_t row, int32_t block) const {
        const ConvCsr &csr = tiling.csr;
        return is_col_idx ? (csr.row_base ? csr.row_base[row] : 0) - tiling.first_channel(block) : 0;
    }
};

// One group of output pixels and TILE_BATCH samples.
struct TilePosition {
    const PixelGroup &y, &x;
    int64_t sample;
};

// Copies into `tile` what the pixels at a position read of one column block.
void pack_tile(const Im2colTiling &tiling, const float *input, const TilePosition &position, int32_t block, int64_t batch,
               float *tile);

// Whether a layer and batch can be computed with im2col tiles, and whether packing them pays.
bool use_im2col(const ConvCsr &csr, int64_t batch, int32_t accumulators);

void im2col_forward(const ForwardArgs &args, const Im2colTiling &tiling, const WorkSplit &split);
void im2col_backward(const BackwardArgs &args, const Im2colTiling &tiling, const WorkSplit &split);

}  // namespace rewire
