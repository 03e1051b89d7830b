// Batch norm with the sum and the ReLU that follow it, over activations in HWCN layout [pixels][channels][batch].
//
// Forward: y = clamp(scale[c] * x + shift[c] + addend), where scale and shift hold mean, variance, weight and bias. Backward:
// the gradient of x is a linear function of x and of the gradient of y, whose coefficients need two sums over each channel.
#include <omp.h>

#include <cmath>
#include <vector>

#include "batch_kernels.hpp"
#include "elementwise.hpp"

namespace rewire {
namespace {

// Two sums over one channel. Over the batch of one pixel they are taken in float, over pixels in double.
struct SumPair {
    double first = 0, second = 0;
};

// [channels] two sums over all pixels. step(channel, index, Vec{}, first, second) adds what is at one vector, or at one float
// where less than a vector is left of the batch.
template <class Step>
std::vector<SumPair> sum_over_pixels(int64_t pixels, int32_t channels, int64_t batch, int threads, Step step) {
    std::vector<SumPair> all(size_t(threads) * channels);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t pixel = 0; pixel < pixels; pixel++) {
        SumPair *own = all.data() + size_t(omp_get_thread_num()) * channels;
        for (int32_t c = 0; c < channels; c++) {
            Vector firsts{}, seconds{};
            float first = 0, second = 0;
            const int64_t at = (pixel * channels + c) * batch;
            int64_t n = 0;
            for (; n + WIDTH <= batch; n += WIDTH) step(c, at + n, Vector{}, firsts, seconds);
            for (; n < batch; n++) step(c, at + n, float{}, first, second);
            own[c].first += first + horizontal_add<Vector>(firsts);
            own[c].second += second + horizontal_add<Vector>(seconds);
        }
    }
    for (int thread = 1; thread < threads; thread++)
        for (int32_t c = 0; c < channels; c++) {
            all[c].first += all[size_t(thread) * channels + c].first;
            all[c].second += all[size_t(thread) * channels + c].second;
        }
    return all;
}

void write_sums(const std::vector<SumPair> &sums, int32_t channels, float *first, float *second) {
    for (int32_t c = 0; c < channels; c++) first[c] = float(sums[c].first), second[c] = float(sums[c].second);
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

void batch_norm_add_grad_sums(const float *x, const float *grad_output, const float *y, const float *mean, int64_t pixels,
                              int32_t channels, int64_t batch, float limit, float *grad, float *grad_sum, float *product_sum,
                              int threads) {
    const auto step = [&](int32_t c, int64_t at, auto kind, auto &grads, auto &products) {
        typedef decltype(kind) Vec;
        const Vec output = load<Vec>(y + at);
        Vec here = load<Vec>(grad_output + at);
        here = output <= broadcast<Vec>(0.f) ? Vec{} : here;
        here = output >= broadcast<Vec>(limit) ? Vec{} : here;
        store<Vec>(grad + at, here);
        grads += here;
        products += here * (load<Vec>(x + at) - broadcast<Vec>(mean[c]));
    };
    write_sums(sum_over_pixels(pixels, channels, batch, threads, step), channels, grad_sum, product_sum);
}

}  // namespace rewire

using namespace rewire;

// Mean and (biased) variance of every channel. Values are centred on the first one: squares of uncentred values would cancel.
EXPORT void rewire_channel_moments(const float *x, int64_t pixels, int32_t channels, int64_t batch, float *mean,
                                   float *variance, int threads) {
    const auto step = [&](int32_t c, int64_t at, auto kind, auto &first, auto &second) {
        typedef decltype(kind) Vec;
        const Vec d = load<Vec>(x + at) - broadcast<Vec>(x[c * batch]);
        first += d;
        second += d * d;
    };
    const auto sums = sum_over_pixels(pixels, channels, batch, threads, step);
    const double count = double(pixels) * batch;
    for (int32_t c = 0; c < channels; c++) {
        const double shift = sums[c].first / count;
        mean[c] = float(x[c * batch] + shift);
        variance[c] = float(std::max(sums[c].second / count - shift * shift, 0.0));
    }
}
REGISTER(rewire_channel_moments);

// Scale and shift of every channel, so that batch norm is scale * x + shift.
EXPORT void rewire_batch_norm_line(const float *weight, const float *bias, const float *mean, const float *variance, float eps,
                                   int32_t channels, float *scale, float *shift) {
    for (int32_t c = 0; c < channels; c++) {
        scale[c] = weight[c] * (1.f / std::sqrt(variance[c] + eps));
        shift[c] = bias[c] - mean[c] * scale[c];
    }
}
REGISTER(rewire_batch_norm_line);

// y = scale[c] * x + shift[c], plus `addend` unless that is null, then clamped to [0, limit] if `relu`.
EXPORT void rewire_batch_norm(const float *x, int64_t pixels, int32_t channels, int64_t batch, const float *scale,
                              const float *shift, int relu, float limit, const float *addend, float *y, int threads) {
    const bool nontemporal = use_nontemporal(y, pixels * channels * batch, batch);
    const ClampRange range(relu, limit);
    for_each_vector(pixels, channels, batch, threads, [&](int32_t c, int64_t at, auto kind) {
        typedef decltype(kind) Vec;
        Vec value = broadcast<Vec>(scale[c]) * load<Vec>(x + at) + broadcast<Vec>(shift[c]);
        if (addend) value += load<Vec>(addend + at);
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
    const auto step = [&](int32_t c, int64_t at, auto kind, auto &grads, auto &products) {
        typedef decltype(kind) Vec;
        const Vec here = load<Vec>(x + at), grad = norm.grad_before_relu<Vec>(c, at, here);
        grads += grad;
        products += grad * (here - broadcast<Vec>(mean[c]));
    };
    write_sums(sum_over_pixels(pixels, channels, batch, threads, step), channels, grad_sum, product_sum);
}
REGISTER(rewire_batch_norm_grad_sums);

// The gradient of the weight, and what rewire_batch_norm_grad_input takes, from the sums over `count` numbers per channel.
EXPORT void rewire_batch_norm_factors(const float *scale, const float *mean, const float *variance, float eps,
                                      const float *grad_sum, const float *product_sum, int64_t count, int32_t channels,
                                      float *grad_weight, float *x_factor, float *constant) {
    for (int32_t c = 0; c < channels; c++) {
        const float inverse = 1.f / std::sqrt(variance[c] + eps);
        grad_weight[c] = product_sum[c] * inverse;
        x_factor[c] = -scale[c] * product_sum[c] * (inverse * inverse) / float(count);
        constant[c] = -scale[c] * grad_sum[c] / float(count) - x_factor[c] * mean[c];
    }
}
REGISTER(rewire_batch_norm_factors);

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
