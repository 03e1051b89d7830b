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

void direct_forward(const Outward &f, const Division &division);
void direct_backward(const Inward &b, const Division &division);

}  // namespace rewire
