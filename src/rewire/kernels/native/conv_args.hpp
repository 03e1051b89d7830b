// What the kernels of a sparse convolution read and write, and how the work is split over threads. There are two ways to
// compute it: conv_direct.cpp reads the activation where it is, conv_im2col.cpp packs what a few pixels read first.
#pragma once
#include "conv_csr.hpp"
#include "simd.hpp"
#include "tuning.hpp"

namespace rewire {

struct ForwardArgs {
    const ConvCsr &csr;
    const float *input, *values, *bias;
    float *output;
    char *moments;  // memory for the channel moments of every thread (channel_moments.hpp), or null
    int64_t batch;
    ClampRange range;
    bool relu, nontemporal;
};

struct BackwardArgs {
    const ConvCsr &csr;  // the transpose
    const float *input, *grad_output, *values;  // values in CSR order
    const float *addend; // is added to grad_input, which it may be; null: none
    float *grad_input;   // null: not needed
    float *grad_values;  // [WorkSplit::grad_buffers()][nnz] in CSR order; null: not needed
    int64_t batch;
    bool nontemporal;

    float *grad_buffer(int which) const { return grad_values ? grad_values + csr.nnz * which : nullptr; }
};

// Splits a layer over threads: by groups of output pixels where there are enough of them, else by rows. A group is one pixel in
// conv_direct.cpp and one tile in conv_im2col.cpp.
struct WorkSplit {
    int32_t groups, row_parts = 1;
    int threads;
    WorkSplit(const ConvCsr &csr, int64_t batch, int64_t group_count, int max_threads)
        : groups(int32_t(group_count)), threads(max_threads) {
        const int64_t products = csr.nnz * csr.y.size * csr.x.size * batch;
        if (products < TWO_THREADS_PRODUCTS) threads = products < ONE_THREAD_PRODUCTS ? 1 : std::min(max_threads, 2);
        if (threads > 1 && groups < PARTS_PER_THREAD * threads) row_parts = PARTS_PER_THREAD * threads;
    }

    // Threads that split groups of pixels sum the gradients of the same weights, so each needs a buffer of its own; threads
    // that split rows have different weights.
    int grad_buffers() const { return row_parts == 1 ? threads : 1; }

    // Calls work(group, first row, end). To be called by every thread of a parallel region.
    template <class Work> void for_each(int32_t rows, Work work) const {
        if (row_parts == 1) {
#pragma omp for schedule(static)
            for (int32_t group = 0; group < groups; group++) work(group, 0, rows);
        } else {
#pragma omp for schedule(static)
            for (int32_t part = 0; part < row_parts; part++)
                for (int32_t group = 0; group < groups; group++)
                    work(group, int32_t(int64_t(rows) * part / row_parts), int32_t(int64_t(rows) * (part + 1) / row_parts));
        }
    }
};

// Calls work(GRAD_INPUT, GRAD_VALUES) with the gradients that are needed as compile-time constants.
template <class Work> void dispatch_grads(const BackwardArgs &args, Work work) {
    if (args.grad_input && args.grad_values) work(std::true_type{}, std::true_type{});
    else if (args.grad_input) work(std::true_type{}, std::false_type{});
    else work(std::false_type{}, std::true_type{});
}

// For the non-zeros [k, end): calls products(k), which returns a vector of products, and adds its horizontal sum to
// grad_values[k].
template <bool GRAD_VALUES, class Vec, class Products>
inline void accumulate_grad_values(int32_t k, int32_t end, float *grad_values, Products products) {
    if constexpr (!std::is_same_v<Vec, float>) {
        for (; k + 4 <= end; k += 4) {
            const Vec p = products(k), q = products(k + 1), r = products(k + 2), s = products(k + 3);
            if constexpr (GRAD_VALUES)
                store<Quad>(grad_values + k, load<Quad>(grad_values + k) + horizontal_add(p, q, r, s));
        }
    }
    for (; k < end; k++) {
        const Vec p = products(k);
        if constexpr (GRAD_VALUES) grad_values[k] += horizontal_add<Vec>(p);
    }
}

void direct_forward(const ForwardArgs &args, const WorkSplit &split);
void direct_backward(const BackwardArgs &args, const WorkSplit &split);

}  // namespace rewire
