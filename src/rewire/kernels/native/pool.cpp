// Max and average pooling over batch-innermost maps [height][width][line], where a line is channels times batch.
#include <algorithm>
#include <limits>

#include "vector.hpp"

namespace rewire {
namespace {

constexpr int64_t PIECE = 256;  // floats of a line done at once: one thread's scratch stays in the first cache

// What pooling slides over the map; rows of `line` floats.
struct Window {
    int32_t height, width, out_height, out_width, kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x;
    int64_t line;
};

// Calls work(input place) for every pixel under the window of output (y, x).
template <class Work> inline void under(const Window &w, int32_t y, int32_t x, Work work) {
    const int32_t top = y * w.stride_y - w.pad_y, left = x * w.stride_x - w.pad_x;
    for (int32_t i = std::max(top, 0); i < std::min(top + w.kernel_y, w.height); i++)
        for (int32_t j = std::max(left, 0); j < std::min(left + w.kernel_x, w.width); j++)
            work((int64_t(i) * w.width + j) * w.line);
}

// Windows that do not overlap never meet in the backward pass: threads take rows of them, and memory is read in order.
// Otherwise each thread owns pieces of the line for all pixels.
template <class Work> void over_pieces(const Window &w, int threads, Work work) {
    const int64_t pieces = (w.line + PIECE - 1) / PIECE;
    const auto one = [&](int32_t y, int32_t x, int64_t piece) {
        const int64_t at = piece * PIECE, size = std::min(PIECE, w.line - at);
        work(y, x, at, (int64_t(y) * w.out_width + x) * w.line + at, size);
    };
    if (w.kernel_y <= w.stride_y && w.kernel_x <= w.stride_x) {
#pragma omp parallel for num_threads(threads) schedule(static) collapse(2)
        for (int32_t y = 0; y < w.out_height; y++)
            for (int32_t x = 0; x < w.out_width; x++)
                for (int64_t piece = 0; piece < pieces; piece++) one(y, x, piece);
    } else {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t piece = 0; piece < pieces; piece++)
            for (int32_t y = 0; y < w.out_height; y++)
                for (int32_t x = 0; x < w.out_width; x++) one(y, x, piece);
    }
}

// The largest so far; a NaN wins, as it does in torch.
inline bool beats(float value, float best) { return value > best || value != value; }

}  // namespace
}  // namespace rewire

using namespace rewire;

EXPORT void rewire_max_pool(const Window *window, const float *x, float *y, int threads) {
    const Window &w = *window;
    over_pieces(w, threads, [&](int32_t i, int32_t j, int64_t at, int64_t out, int64_t size) {
        float *best = y + out;
        std::fill(best, best + size, -std::numeric_limits<float>::infinity());
        under(w, i, j, [&](int64_t place) {
            const float *in = x + place + at;
#pragma omp simd
            for (int64_t n = 0; n < size; n++) best[n] = beats(in[n], best[n]) ? in[n] : best[n];
        });
    });
}

// The gradient goes to the first of the largest. `grad_input` must be zero.
EXPORT void rewire_max_pool_backward(const Window *window, const float *x, const float *grad, float *grad_input,
                                     int threads) {
    const Window &w = *window;
    over_pieces(w, threads, [&](int32_t i, int32_t j, int64_t at, int64_t out, int64_t size) {
        float best[PIECE];
        int32_t winner[PIECE], here = 0;
        std::fill(best, best + size, -std::numeric_limits<float>::infinity());
        std::fill(winner, winner + size, 0);
        under(w, i, j, [&](int64_t place) {
            const float *in = x + place + at;
#pragma omp simd
            for (int64_t n = 0; n < size; n++) {
                const bool wins = beats(in[n], best[n]);
                best[n] = wins ? in[n] : best[n];
                winner[n] = wins ? here : winner[n];
            }
            here++;
        });
        here = 0;
        under(w, i, j, [&](int64_t place) {
            float *to = grad_input + place + at;
#pragma omp simd
            for (int64_t n = 0; n < size; n++) to[n] += winner[n] == here ? grad[out + n] : 0.f;
            here++;
        });
    });
}

// Sums under the window times scale[output pixel], which knows how padding counts.
EXPORT void rewire_average_pool(const Window *window, const float *x, const float *scale, float *y, int threads) {
    const Window &w = *window;
    over_pieces(w, threads, [&](int32_t i, int32_t j, int64_t at, int64_t out, int64_t size) {
        float *total = y + out;
        const float factor = scale[int64_t(i) * w.out_width + j];
        std::fill(total, total + size, 0.f);
        under(w, i, j, [&](int64_t place) {
#pragma omp simd
            for (int64_t n = 0; n < size; n++) total[n] += factor * x[place + at + n];
        });
    });
}

EXPORT void rewire_average_pool_backward(const Window *window, const float *grad, const float *scale, float *grad_input,
                                         int threads) {
    const Window &w = *window;
    over_pieces(w, threads, [&](int32_t i, int32_t j, int64_t at, int64_t out, int64_t size) {
        const float factor = scale[int64_t(i) * w.out_width + j];
        under(w, i, j, [&](int64_t place) {
#pragma omp simd
            for (int64_t n = 0; n < size; n++) grad_input[place + at + n] += factor * grad[out + n];
        });
    });
}
