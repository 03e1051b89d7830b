// Batch norm with the ReLU that follows it, over activations in HWCN layout [pixels][channels][batch].
//
// Forward: y = clamp(scale[c] * x + shift[c]), where scale and shift hold mean, variance, weight and bias. Backward: the
// gradient of x is a linear function of x and of the gradient of y, whose coefficients need two sums over each channel.
#include <omp.h>

#include <cmath>
#include <vector>

#include "elementwise.hpp"
#include "entry_point.hpp"

namespace rewire {
namespace {

// Two sums over one channel. Over the batch of one pixel they are taken in float, over pixels in double.
struct SumPair {
    double first = 0, second = 0;
};

// [channels] the sums of work(channel, index, first, second) over all pixels.
template <class Work>
std::vector<SumPair> sum_over_pixels(int64_t pixels, int32_t channels, int64_t batch, int threads, Work work) {
    std::vector<SumPair> all(size_t(threads) * channels);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t pixel = 0; pixel < pixels; pixel++) {
        SumPair *own = all.data() + size_t(omp_get_thread_num()) * channels;
        for (int32_t c = 0; c < channels; c++) {
            float first = 0, second = 0;
            work(c, (pixel * channels + c) * batch, first, second);
            own[c].first += first;
            own[c].second += second;
        }
    }
    for (int thread = 1; thread < threads; thread++)
        for (int32_t c = 0; c < channels; c++) {
            all[c].first += all[size_t(thread) * channels + c].first;
            all[c].second += all[size_t(thread) * channels + c].second;
        }
    return all;
}

// The inputs of the backward pass.
struct NormBackward {
    const float *x, *grad_output, *scale, *shift;
    ClampRange range;
    bool relu;

    // The gradient before the ReLU: zero where that is flat.
    template <class Vec> inline Vec grad_before_relu(int32_t c, int64_t at, Vec x_here) const {
        Vec grad = load<Vec>(grad_output + at);
        if (relu) {
            const Vec y = broadcast<Vec>(scale[c]) * x_here + broadcast<Vec>(shift[c]);
            grad = y <= broadcast<Vec>(range.low) ? Vec{} : grad;
            grad = y >= broadcast<Vec>(range.high) ? Vec{} : grad;
        }
        return grad;
    }
};

}  // namespace
}  // namespace rewire

using namespace rewire;

// Mean and (biased) variance of every channel. Values are centred on the first one: squares of uncentred values would cancel.
EXPORT void rewire_channel_moments(const float *x, int64_t pixels, int32_t channels, int64_t batch, float *mean,
                                   float *variance, int threads) {
    const auto sums =
        sum_over_pixels(pixels, channels, batch, threads, [&](int32_t c, int64_t at, float &first, float &second) {
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
REGISTER(rewire_channel_moments);

// y = scale[c] * x + shift[c], then clamped to [0, limit] if `relu`.
EXPORT void rewire_batch_norm(const float *x, int64_t pixels, int32_t channels, int64_t batch, const float *scale,
                              const float *shift, int relu, float limit, float *y, int threads) {
    const bool nontemporal = use_nontemporal(y, pixels * channels * batch, batch);
    const ClampRange range(relu, limit);
    for_each_vector(pixels, channels, batch, threads, [&](int32_t c, int64_t at, auto kind) {
        typedef decltype(kind) Vec;
        const Vec value = broadcast<Vec>(scale[c]) * load<Vec>(x + at) + broadcast<Vec>(shift[c]);
        const Vec result = relu ? clamp<Vec>(value, broadcast<Vec>(range.low), broadcast<Vec>(range.high)) : value;
        store_tile<Vec, 1>(y + at, &result, 0, nontemporal);
    });
}
REGISTER(rewire_batch_norm);

// For every channel the sums of grad and of grad * (x - mean), where grad is the gradient before the ReLU.
EXPORT void rewire_batch_norm_grad_sums(const float *x, const float *grad_output, const float *mean, int64_t pixels,
                                        int32_t channels, int64_t batch, const float *scale, const float *shift, int relu,
                                        float limit, float *grad_sum, float *product_sum, int threads) {
    const NormBackward norm{x, grad_output, scale, shift, ClampRange(relu, limit), relu != 0};
    const auto sums =
        sum_over_pixels(pixels, channels, batch, threads, [&](int32_t c, int64_t at, float &first, float &second) {
            const float centre = mean[c];
            Vector grads{}, products{};
            int64_t n = 0;
            for (; n + WIDTH <= batch; n += WIDTH) {
                const Vector here = load<Vector>(x + at + n), grad = norm.grad_before_relu<Vector>(c, at + n, here);
                grads += grad;
                products += grad * (here - centre);
            }
            first = horizontal_add<Vector>(grads), second = horizontal_add<Vector>(products);
            for (; n < batch; n++) {
                const float grad = norm.grad_before_relu<float>(c, at + n, x[at + n]);
                first += grad;
                second += grad * (x[at + n] - centre);
            }
        });
    for (int32_t c = 0; c < channels; c++) {
        grad_sum[c] = float(sums[c].first);
        product_sum[c] = float(sums[c].second);
    }
}
REGISTER(rewire_batch_norm_grad_sums);

// grad_input = grad_factor[c] * grad + x_factor[c] * x + constant[c], where grad is the gradient before the ReLU.
EXPORT void rewire_batch_norm_grad_input(const float *x, const float *grad_output, int64_t pixels, int32_t channels,
                                         int64_t batch, const float *scale, const float *shift, int relu, float limit,
                                         const float *grad_factor, const float *x_factor, const float *constant,
                                         float *grad_input, int threads) {
    const bool nontemporal = use_nontemporal(grad_input, pixels * channels * batch, batch);
    const NormBackward norm{x, grad_output, scale, shift, ClampRange(relu, limit), relu != 0};
    for_each_vector(pixels, channels, batch, threads, [&](int32_t c, int64_t at, auto kind) {
        typedef decltype(kind) Vec;
        const Vec here = load<Vec>(x + at), grad = norm.grad_before_relu<Vec>(c, at, here);
        const Vec result = broadcast<Vec>(grad_factor[c]) * grad +
                           (broadcast<Vec>(x_factor[c]) * here + broadcast<Vec>(constant[c]));
        store_tile<Vec, 1>(grad_input + at, &result, 0, nontemporal);
    });
}
REGISTER(rewire_batch_norm_grad_input);
