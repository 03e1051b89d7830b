// Batch norm with the ReLU that follows it, over batch-innermost maps [pixels][channels][batch].
#include <omp.h>

#include <cmath>
#include <vector>

#include "vector.hpp"

namespace rewire {
namespace {

constexpr int64_t PIECE = 4096;  // floats that one thread takes at a time

// Sums over one channel at one pixel, in float; over pixels they are added up in double.
struct Pair {
    double first = 0, second = 0;
};

// [threads][channels] sums of work(place) -> two floats, added over all threads.
template <class Work> std::vector<Pair> over_pixels(int64_t pixels, int32_t channels, int64_t batch, int threads, Work work) {
    std::vector<Pair> all(size_t(threads) * channels);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t pixel = 0; pixel < pixels; pixel++) {
        Pair *mine = all.data() + size_t(omp_get_thread_num()) * channels;
        for (int32_t c = 0; c < channels; c++) {
            float first = 0, second = 0;
            work(c, (pixel * channels + c) * batch, first, second);
            mine[c].first += first;
            mine[c].second += second;
        }
    }
    for (int other = 1; other < threads; other++)
        for (int32_t c = 0; c < channels; c++) {
            all[c].first += all[size_t(other) * channels + c].first;
            all[c].second += all[size_t(other) * channels + c].second;
        }
    return all;
}

}  // namespace
}  // namespace rewire

using namespace rewire;

// Mean and (biased) variance of every channel. Values are centred on the first one, or squares would cancel.
EXPORT void rewire_moments(const float *x, int64_t pixels, int32_t channels, int64_t batch, float *mean, float *variance,
                           int threads) {
    const auto sums = over_pixels(pixels, channels, batch, threads, [&](int32_t c, int64_t at, float &first, float &second) {
        const float centre = x[c * batch];
#pragma omp simd reduction(+ : first, second)
        for (int64_t n = 0; n < batch; n++) {
            const float d = x[at + n] - centre;
            first += d;
            second += d * d;
        }
    });
    const double count = double(pixels) * batch;
    for (int32_t c = 0; c < channels; c++) {
        const double shift = sums[c].first / count;
        mean[c] = float(x[c * batch] + shift);
        variance[c] = float(std::max(sums[c].second / count - shift * shift, 0.0));
    }
}

// Calls work(channel, place, V) for every vector of a map, and for every single float where the batch ends.
template <class Work> void each_vector(int64_t pixels, int32_t channels, int64_t batch, int threads, Work work) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t pixel = 0; pixel < pixels; pixel++)
            for (int32_t c = 0; c < channels; c++) {
                const int64_t at = (pixel * channels + c) * batch;
                int64_t n = 0;
                for (; n + WIDTH <= batch; n += WIDTH) work(c, at + n, Vector{});
                for (; n < batch; n++) work(c, at + n, float{});
            }
        fence();
    }
}

// y = scale[c] * x + shift[c], then clamped to [0, limit] if active.
EXPORT void rewire_scale(const float *x, int64_t pixels, int32_t channels, int64_t batch, const float *scale,
                         const float *shift, int active, float limit, float *y, int threads) {
    const bool streamed = is_streamed(y, pixels * channels * batch, batch);
    const Range range(active, limit);
    each_vector(pixels, channels, batch, threads, [&](int32_t c, int64_t at, auto kind) {
        typedef decltype(kind) V;
        const V value = spread<V>(scale[c]) * load<V>(x + at) + spread<V>(shift[c]);
        const V result = active ? clamp<V>(value, spread<V>(range.low), spread<V>(range.high)) : value;
        put<V, 1>(y + at, &result, 0, streamed);
    });
}

// What the backward pass of batch norm reads: the map, the gradient of what was made of it, and how it was made.
struct Normed {
    const float *x, *grad, *scale, *shift;
    Range range;
    bool active;

    // The gradient behind the activation: none where it is flat.
    template <class V> inline V behind(int32_t c, int64_t at, V x_here) const {
        V g = load<V>(grad + at);
        if (active) {
            const V y = spread<V>(scale[c]) * x_here + spread<V>(shift[c]);
            g = y <= spread<V>(range.low) ? V{} : g;
            g = y >= spread<V>(range.high) ? V{} : g;
        }
        return g;
    }
};

// Sums of the gradient and of gradient times (x - mean) over every channel: what batch norm's backward pass needs.
EXPORT void rewire_norm_sums(const float *x, const float *grad, const float *mean, int64_t pixels, int32_t channels,
                             int64_t batch, const float *scale, const float *shift, int active, float limit, float *sum,
                             float *product, int threads) {
    const Normed normed{x, grad, scale, shift, Range(active, limit), active != 0};
    const auto sums = over_pixels(pixels, channels, batch, threads, [&](int32_t c, int64_t at, float &first, float &second) {
        const float centre = mean[c];
        Vector one{}, two{};
        int64_t n = 0;
        for (; n + WIDTH <= batch; n += WIDTH) {
            const Vector here = load<Vector>(x + at + n), g = normed.behind<Vector>(c, at + n, here);
            one += g;
            two += g * (here - centre);
        }
        first = rewire::sum<Vector>(one), second = rewire::sum<Vector>(two);
        for (; n < batch; n++) {
            const float g = normed.behind<float>(c, at + n, x[at + n]);
            first += g;
            second += g * (x[at + n] - centre);
        }
    });
    for (int32_t c = 0; c < channels; c++) {
        sum[c] = float(sums[c].first);
        product[c] = float(sums[c].second);
    }
}

// grad_input = a[c] * grad + b[c] * x + d[c]
EXPORT void rewire_norm_input(const float *x, const float *grad, int64_t pixels, int32_t channels, int64_t batch,
                              const float *scale, const float *shift, int active, float limit, const float *a,
                              const float *b, const float *d, float *grad_input, int threads) {
    const bool streamed = is_streamed(grad_input, pixels * channels * batch, batch);
    const Normed normed{x, grad, scale, shift, Range(active, limit), active != 0};
    each_vector(pixels, channels, batch, threads, [&](int32_t c, int64_t at, auto kind) {
        typedef decltype(kind) V;
        const V here = load<V>(x + at), g = normed.behind<V>(c, at, here);
        const V result = spread<V>(a[c]) * g + (spread<V>(b[c]) * here + spread<V>(d[c]));
        put<V, 1>(grad_input + at, &result, 0, streamed);
    });
}

// y = x + other, or x alone if there is no other, then clamped to [0, limit] if active: ReLU, or the end of a residual block.
EXPORT void rewire_activate(const float *x, const float *other, int64_t size, int active, float limit, float *y, int threads) {
    const bool streamed = is_streamed(y, size, size);
    const Range range(active, limit);
    each_vector((size + PIECE - 1) / PIECE, 1, PIECE, size < PIECE ? 1 : threads, [&](int32_t, int64_t at, auto kind) {
        typedef decltype(kind) V;
        if (at + lanes<V> > size) {
            for (; at < size; at++) y[at] = clamp<float>(other ? x[at] + other[at] : x[at], range.low, range.high);
            return;
        }
        const V sum = other ? load<V>(x + at) + load<V>(other + at) : load<V>(x + at);
        const V result = clamp<V>(sum, spread<V>(range.low), spread<V>(range.high));
        put<V, 1>(y + at, &result, 0, streamed);
    });
}

// The gradient where the activation is not flat.
EXPORT void rewire_activate_backward(const float *y, const float *grad, int64_t size, float limit, float *grad_input,
                                     int threads) {
    const bool streamed = is_streamed(grad_input, size, size);
    const Range range(1, limit);
    each_vector((size + PIECE - 1) / PIECE, 1, PIECE, size < PIECE ? 1 : threads, [&](int32_t, int64_t at, auto kind) {
        typedef decltype(kind) V;
        if (at + lanes<V> > size) {
            for (; at < size; at++) grad_input[at] = y[at] <= range.low || y[at] >= range.high ? 0.f : grad[at];
            return;
        }
        const V here = load<V>(y + at);
        V g = load<V>(grad + at);
        g = here <= spread<V>(range.low) ? V{} : g;
        g = here >= spread<V>(range.high) ? V{} : g;
        put<V, 1>(grad_input + at, &g, 0, streamed);
    });
}
