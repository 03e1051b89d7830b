// Batch norm and pooling over batch-innermost maps [pixels][channels][batch], so that a network never leaves the layout.
#include <omp.h>

#include <cmath>
#include <limits>
#include <vector>

#include "vector.hpp"

namespace rewire {
namespace {

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

// y = scale[c] * x + shift[c]
EXPORT void rewire_scale(const float *x, int64_t pixels, int32_t channels, int64_t batch, const float *scale,
                         const float *shift, float *y, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t pixel = 0; pixel < pixels; pixel++)
        for (int32_t c = 0; c < channels; c++) {
            const int64_t at = (pixel * channels + c) * batch;
            const float a = scale[c], b = shift[c];
#pragma omp simd
            for (int64_t n = 0; n < batch; n++) y[at + n] = a * x[at + n] + b;
        }
}

// Sums of the gradient and of gradient times (x - mean) over every channel: what batch norm's backward pass needs.
EXPORT void rewire_norm_sums(const float *x, const float *grad, const float *mean, int64_t pixels, int32_t channels,
                             int64_t batch, float *sum, float *product, int threads) {
    const auto sums = over_pixels(pixels, channels, batch, threads, [&](int32_t c, int64_t at, float &first, float &second) {
        const float centre = mean[c];
#pragma omp simd reduction(+ : first, second)
        for (int64_t n = 0; n < batch; n++) {
            first += grad[at + n];
            second += grad[at + n] * (x[at + n] - centre);
        }
    });
    for (int32_t c = 0; c < channels; c++) {
        sum[c] = float(sums[c].first);
        product[c] = float(sums[c].second);
    }
}

// grad_input = a[c] * grad + b[c] * x + d[c]
EXPORT void rewire_norm_input(const float *x, const float *grad, int64_t pixels, int32_t channels, int64_t batch,
                              const float *a, const float *b, const float *d, float *grad_input, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t pixel = 0; pixel < pixels; pixel++)
        for (int32_t c = 0; c < channels; c++) {
            const int64_t at = (pixel * channels + c) * batch;
            const float u = a[c], v = b[c], w = d[c];
#pragma omp simd
            for (int64_t n = 0; n < batch; n++) grad_input[at + n] = u * grad[at + n] + v * x[at + n] + w;
        }
}
