// The two passes of a sparse layer: what is read, what is written, and how the work is divided.
//
// There are two ways to go about it. Directly (direct.cpp), every pixel reads the map itself. Through windows (windows.cpp),
// a few neighbouring pixels read a copy of what they need.
#pragma once
#include "gather.hpp"
#include "vector.hpp"

namespace rewire {

struct Outward {
    const Gather &g;
    const float *input, *values, *bias;
    float *output;
    char *moments;  // memory for those of every thread (moments.hpp), or null
    int64_t batch;
    Range range;
    bool clamped, streamed;
};

struct Inward {
    const Gather &g;
    const float *input, *grad, *values;  // grad: of the output; it is what is gathered. Values in the order of the tables
    float *grad_input;                   // null: not wanted
    float *grad_values;                  // [buffers of the division][nnz] in the order of the tables; null: not wanted
    int64_t batch;
    bool streamed;

    // One of the buffers of the weights' gradients.
    float *buffer(int which) const { return grad_values ? grad_values + g.nnz * which : nullptr; }
};

// Over pieces of the map where there are enough of them, else over rows; a small job is not divided.
struct Division {
    int32_t pieces, parts = 1;
    int threads;
    Division(const Gather &g, int64_t batch, int64_t count, int most) : pieces(int32_t(count)), threads(most) {
        const int64_t products = g.nnz * g.y.size * g.x.size * batch;
        if (products < 1 << 20) threads = products < 1 << 17 ? 1 : std::min(most, 2);
        if (threads > 1 && pieces < 2 * threads) parts = 2 * threads;
    }

    // Threads over pieces sum the weights' gradients apart from each other; threads over rows never meet.
    int buffers() const { return parts == 1 ? threads : 1; }

    // Calls work(piece, from row, to row) for all that there is to do. To be called by every thread of a team.
    template <class Work> void each(int32_t rows, Work work) const {
        if (parts == 1) {
#pragma omp for schedule(static)
            for (int32_t piece = 0; piece < pieces; piece++) work(piece, 0, rows);
        } else {
#pragma omp for schedule(static)
            for (int32_t part = 0; part < parts; part++)
                for (int32_t piece = 0; piece < pieces; piece++)
                    work(piece, int32_t(int64_t(rows) * part / parts), int32_t(int64_t(rows) * (part + 1) / parts));
        }
    }
};

// Calls work with which gradients are wanted, as types: INPUT and VALUES of the kernels.
template <class Work> void wanted(const Inward &b, Work work) {
    if (b.grad_input && b.grad_values) work(std::true_type{}, std::true_type{});
    else if (b.grad_input) work(std::true_type{}, std::false_type{});
    else work(std::false_type{}, std::true_type{});
}

// Calls one(k), whose result is a vector of products, for the non-zeros [k, end), and adds up each one's in `grad_values`.
template <bool VALUES, class V, class One> inline void sum_products(int32_t k, int32_t end, float *grad_values, One one) {
    if constexpr (!std::is_same_v<V, float>) {
        for (; k + 4 <= end; k += 4) {
            const V p = one(k), q = one(k + 1), r = one(k + 2), s = one(k + 3);
            if constexpr (VALUES) store<Quad>(grad_values + k, load<Quad>(grad_values + k) + sums(p, q, r, s));
        }
    }
    for (; k < end; k++) {
        const V p = one(k);
        if constexpr (VALUES) grad_values[k] += sum<V>(p);
    }
}

void direct_forward(const Outward &f, const Division &division);
void direct_backward(const Inward &b, const Division &division);

}  // namespace rewire
