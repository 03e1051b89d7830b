// Convolutions that keep about half of their weights or more. Skipping zeros costs more than it saves there: the weights are
// written out dense, and blocks of rows share what they load, as in a matrix product, in the same HWCN layout as all layers.
#pragma once
#include "conv_csr.hpp"
#include "csr_build.hpp"

namespace rewire {

// One direction of a dense convolution. Of the CSR only the geometry is used.
struct DenseConv {
    const ConvCsr &csr;
    const int32_t *tap_offset;  // [taps] what a tap reads, in channels from the base, in the order of the CSR's taps
    int64_t columns() const { return int64_t(csr.taps) * csr.in_channels; }
};

// The flat positions of the weights that exist.
struct Positions {
    const void *data;
    bool is_int64;
    const LayerShape &shape;
    int64_t nnz;

    // Calls work(k, output channel, input channel, tap) for the weights [from, to).
    template <class Work> void for_each(int64_t from, int64_t to, Work work) const {
        const int64_t row_size = int64_t(shape.in_channels) * shape.taps;
        for (int64_t k = from; k < to; k++) {
            const int64_t position =
                is_int64 ? static_cast<const int64_t *>(data)[k] : static_cast<const int32_t *>(data)[k];
            const int64_t output = position / row_size;
            const uint32_t column = uint32_t(position - output * row_size);
            work(k, int32_t(output), int32_t(column / uint32_t(shape.taps)), int32_t(column % uint32_t(shape.taps)));
        }
    }
};

// conv_dense_grad.cpp: the gradients of the weights that exist.
void dense_grad_values(const DenseConv &conv, const Positions &positions, const float *input, const float *grad_output,
                       float *grad_values, int64_t batch, int threads);

}  // namespace rewire
