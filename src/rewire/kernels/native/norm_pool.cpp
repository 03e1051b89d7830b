// Batch norm, ReLU and 2x2 max pooling in one pass: the map between them is never written. Batch-innermost, as ever.
#include <omp.h>

#include <vector>

#include "vector.hpp"

namespace rewire {
namespace {

// The map that is normalised, [2 * height][2 * width][channels][batch], and how; height and width are those after pooling.
struct Pooled {
    const float *x, *scale, *shift;
    int32_t height, width, channels;
    int64_t batch;
    Range range;

    int64_t line() const { return channels * batch; }

    // Where the pixel `j` of a window lies, for the place of the pooled pixel (y, x) and an offset in the line.
    int64_t place(int32_t y, int32_t x_, int j, int64_t offset) const {
        return ((int64_t(2 * y + j / 2) * 2 * width) + 2 * x_ + j % 2) * line() + offset;
    }
};

// The largest of a window, the first where several are: after the activation, before batch norm, and which it is.
template <class V> struct Largest {
    V value, before, index;
    V x[4];

    Largest(const Pooled &p, int32_t c, int32_t y, int32_t x_, int64_t offset) : index(V{}) {
        const V a = spread<V>(p.scale[c]), b = spread<V>(p.shift[c]);
        const V low = spread<V>(p.range.low), high = spread<V>(p.range.high);
        UNROLL for (int j = 0; j < 4; j++) {
            x[j] = load<V>(p.x + p.place(y, x_, j, offset));
            const V now = clamp<V>(a * x[j] + b, low, high);
            if (j == 0) {
                value = now, before = x[0];
            } else {
                const auto wins = (now > value) | (now != now);  // what is no number wins, as it does in torch
                value = wins ? now : value;
                before = wins ? x[j] : before;
                index = wins ? spread<V>(float(j)) : index;
            }
        }
    }

    // The gradient behind the activation: none where it is flat.
    V behind(const Pooled &p, V grad) const {
        grad = value <= spread<V>(p.range.low) ? V{} : grad;
        return value >= spread<V>(p.range.high) ? V{} : grad;
    }
};

// Calls work(y, x, channel, offset in the line, V) for every vector of every pooled pixel. By every thread of a team.
template <class Work> void each(const Pooled &p, Work work) {
#pragma omp for schedule(static) collapse(2)
    for (int32_t y = 0; y < p.height; y++)
        for (int32_t x = 0; x < p.width; x++)
            for (int32_t c = 0; c < p.channels; c++) {
                int64_t n = 0;
                for (; n + WIDTH <= p.batch; n += WIDTH) work(y, x, c, c * p.batch + n, Vector{});
                for (; n < p.batch; n++) work(y, x, c, c * p.batch + n, float{});
            }
}

}  // namespace
}  // namespace rewire

using namespace rewire;

EXPORT void rewire_norm_pool(const float *x, int32_t height, int32_t width, int32_t channels, int64_t batch,
                             const float *scale, const float *shift, int active, float limit, float *y, int threads) {
    const Pooled p{x, scale, shift, height, width, channels, batch, Range(active, limit)};
    const bool streamed = is_streamed(y, int64_t(height) * width * p.line(), batch);
#pragma omp parallel num_threads(threads)
    {
        each(p, [&](int32_t i, int32_t j, int32_t c, int64_t offset, auto kind) {
            typedef decltype(kind) V;
            const Largest<V> largest(p, c, i, j, offset);
            put<V, 1>(y + (int64_t(i) * width + j) * p.line() + offset, &largest.value, 0, streamed);
        });
        fence();
    }
}

// As rewire_norm_sums, for the gradient of the pooled map.
EXPORT void rewire_norm_pool_sums(const float *x, const float *grad, const float *mean, int32_t height, int32_t width,
                                  int32_t channels, int64_t batch, const float *scale, const float *shift, int active,
                                  float limit, float *sum_, float *product, int threads) {
    const Pooled p{x, scale, shift, height, width, channels, batch, Range(active, limit)};
    std::vector<double> all(size_t(threads) * channels * 2);
#pragma omp parallel num_threads(threads)
    {
        double *mine = all.data() + size_t(omp_get_thread_num()) * channels * 2;
        each(p, [&](int32_t i, int32_t j, int32_t c, int64_t offset, auto kind) {
            typedef decltype(kind) V;
            const Largest<V> largest(p, c, i, j, offset);
            const V g = largest.behind(p, load<V>(grad + (int64_t(i) * width + j) * p.line() + offset));
            mine[2 * c] += sum<V>(g);
            mine[2 * c + 1] += sum<V>(g * (largest.before - spread<V>(mean[c])));
        });
    }
    for (int32_t c = 0; c < channels; c++) {
        double first = 0, second = 0;
        for (int thread = 0; thread < threads; thread++) {
            first += all[(size_t(thread) * channels + c) * 2];
            second += all[(size_t(thread) * channels + c) * 2 + 1];
        }
        sum_[c] = float(first), product[c] = float(second);
    }
}

// As rewire_norm_input: the gradient of a pooled pixel goes to the largest of its window.
EXPORT void rewire_norm_pool_input(const float *x, const float *grad, int32_t height, int32_t width, int32_t channels,
                                   int64_t batch, const float *scale, const float *shift, int active, float limit,
                                   const float *a, const float *b, const float *d, float *grad_input, int threads) {
    const Pooled p{x, scale, shift, height, width, channels, batch, Range(active, limit)};
    const bool streamed = is_streamed(grad_input, 4 * int64_t(height) * width * p.line(), batch);
#pragma omp parallel num_threads(threads)
    {
        each(p, [&](int32_t i, int32_t j, int32_t c, int64_t offset, auto kind) {
            typedef decltype(kind) V;
            const Largest<V> largest(p, c, i, j, offset);
            const V g = largest.behind(p, load<V>(grad + (int64_t(i) * width + j) * p.line() + offset));
            const V u = spread<V>(a[c]), v = spread<V>(b[c]), w = spread<V>(d[c]);
            UNROLL for (int k = 0; k < 4; k++) {
                const V here = largest.index == spread<V>(float(k)) ? g : V{};
                const V result = u * here + (v * largest.x[k] + w);
                put<V, 1>(grad_input + p.place(i, j, k, offset), &result, 0, streamed);
            }
        });
        fence();
    }
}
