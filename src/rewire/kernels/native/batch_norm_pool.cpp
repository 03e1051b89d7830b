// Batch norm, ReLU and 2x2 max pooling in one pass over an activation in HWCN layout: what lies between them is never written.
#include <omp.h>

#include <vector>

#include "batch_kernels.hpp"
#include "batch_tile.hpp"

namespace rewire {
namespace {

// The input, [2 * height][2 * width][channels][batch], and its normalisation; height and width are those after pooling.
struct NormPool {
    const float *x, *scale, *shift;
    int32_t height, width, channels;
    int64_t batch;
    ClampRange range;

    int64_t pixel_size() const { return channels * batch; }

    // The index of pixel j (0 to 3) of the window of the pooled pixel (row, column), plus an offset within the pixel.
    int64_t window_index(int32_t row, int32_t column, int j, int64_t offset) const {
        return ((int64_t(2 * row + j / 2) * 2 * width) + 2 * column + j % 2) * pixel_size() + offset;
    }
};

// The largest of the four pixels of a window after norm and ReLU; of equal ones the first.
template <class Vec> struct WindowMax {
    Vec value, x_at_max, index;  // after norm and ReLU; before norm; which pixel (0 to 3)
    Vec x[4];

    WindowMax(const NormPool &p, int32_t c, int32_t row, int32_t column, int64_t offset) : index(Vec{}) {
        const Vec scale = broadcast<Vec>(p.scale[c]), shift = broadcast<Vec>(p.shift[c]);
        const Vec low = broadcast<Vec>(p.range.low), high = broadcast<Vec>(p.range.high);
        UNROLL for (int j = 0; j < 4; j++) {
            x[j] = load<Vec>(p.x + p.window_index(row, column, j, offset));
            const Vec y = clamp<Vec>(scale * x[j] + shift, low, high);
            if (j == 0) {
                value = y, x_at_max = x[0];
            } else {
                const auto wins = (y > value) | (y != y);  // NaN wins, as in torch
                value = wins ? y : value;
                x_at_max = wins ? x[j] : x_at_max;
                index = wins ? broadcast<Vec>(float(j)) : index;
            }
        }
    }

    // The gradient before the ReLU: zero where that is flat.
    Vec grad_before_relu(const NormPool &p, Vec grad) const {
        grad = value <= broadcast<Vec>(p.range.low) ? Vec{} : grad;
        return value >= broadcast<Vec>(p.range.high) ? Vec{} : grad;
    }
};

// Calls work(row, column, channel, offset within the pixel, Vec{}) for every vector of every pooled pixel. To be called by
// every thread of a parallel region.
template <class Work> void for_each_window(const NormPool &p, Work work) {
#pragma omp for schedule(static) collapse(2)
    for (int32_t row = 0; row < p.height; row++)
        for (int32_t column = 0; column < p.width; column++)
            for (int32_t c = 0; c < p.channels; c++) {
                int64_t n = 0;
                for (; n + WIDTH <= p.batch; n += WIDTH) work(row, column, c, c * p.batch + n, Vector{});
                for (; n < p.batch; n++) work(row, column, c, c * p.batch + n, float{});
            }
}

}  // namespace
}  // namespace rewire

using namespace rewire;

// y = the largest of every 2x2 pixels of clamp(scale[c] * x + shift[c]).
EXPORT void rewire_batch_norm_pool(const float *x, int32_t height, int32_t width, int32_t channels, int64_t batch,
                                   const float *scale, const float *shift, int relu, float limit, float *y, int threads) {
    const NormPool p{x, scale, shift, height, width, channels, batch, ClampRange(relu, limit)};
    const bool nontemporal = use_nontemporal(y, int64_t(height) * width * p.pixel_size(), batch);
#pragma omp parallel num_threads(threads)
    {
        for_each_window(p, [&](int32_t i, int32_t j, int32_t c, int64_t offset, auto kind) {
            typedef decltype(kind) Vec;
            const WindowMax<Vec> max(p, c, i, j, offset);
            store_tile<Vec, 1>(y + (int64_t(i) * width + j) * p.pixel_size() + offset, &max.value, 0, nontemporal);
        });
        store_fence();
    }
}
REGISTER(rewire_batch_norm_pool);

// As rewire_batch_norm_grad_sums, for the gradient of the pooled activation.
EXPORT void rewire_batch_norm_pool_grad_sums(const float *x, const float *grad_output, const float *mean, int32_t height,
                                             int32_t width, int32_t channels, int64_t batch, const float *scale,
                                             const float *shift, int relu, float limit, float *grad_sum,
                                             float *product_sum, int threads) {
    const NormPool p{x, scale, shift, height, width, channels, batch, ClampRange(relu, limit)};
    std::vector<double> all(size_t(threads) * channels * 2);
#pragma omp parallel num_threads(threads)
    {
        double *own = all.data() + size_t(omp_get_thread_num()) * channels * 2;
        for_each_window(p, [&](int32_t i, int32_t j, int32_t c, int64_t offset, auto kind) {
            typedef decltype(kind) Vec;
            const WindowMax<Vec> max(p, c, i, j, offset);
            const int64_t at = (int64_t(i) * width + j) * p.pixel_size() + offset;
            const Vec grad = max.grad_before_relu(p, load<Vec>(grad_output + at));
            own[2 * c] += horizontal_add<Vec>(grad);
            own[2 * c + 1] += horizontal_add<Vec>(grad * (max.x_at_max - broadcast<Vec>(mean[c])));
        });
    }
    for (int32_t c = 0; c < channels; c++) {
        double first = 0, second = 0;
        for (int thread = 0; thread < threads; thread++) {
            first += all[(size_t(thread) * channels + c) * 2];
            second += all[(size_t(thread) * channels + c) * 2 + 1];
        }
        grad_sum[c] = float(first), product_sum[c] = float(second);
    }
}
REGISTER(rewire_batch_norm_pool_grad_sums);

// As rewire_batch_norm_grad_input: the gradient of a pooled pixel belongs to the largest of its window.
EXPORT void rewire_batch_norm_pool_grad_input(const float *x, const float *grad_output, int32_t height, int32_t width,
                                              int32_t channels, int64_t batch, const float *scale, const float *shift,
                                              int relu, float limit, const float *grad_factor, const float *x_factor,
                                              const float *constant, float *grad_input, int threads) {
    const NormPool p{x, scale, shift, height, width, channels, batch, ClampRange(relu, limit)};
    const bool nontemporal = use_nontemporal(grad_input, 4 * int64_t(height) * width * p.pixel_size(), batch);
#pragma omp parallel num_threads(threads)
    {
        for_each_window(p, [&](int32_t i, int32_t j, int32_t c, int64_t offset, auto kind) {
            typedef decltype(kind) Vec;
            const WindowMax<Vec> max(p, c, i, j, offset);
            const int64_t at = (int64_t(i) * width + j) * p.pixel_size() + offset;
            const Vec grad = max.grad_before_relu(p, load<Vec>(grad_output + at));
            const Vec a = broadcast<Vec>(grad_factor[c]), b = broadcast<Vec>(x_factor[c]), d = broadcast<Vec>(constant[c]);
            UNROLL for (int k = 0; k < 4; k++) {
                const Vec here = max.index == broadcast<Vec>(float(k)) ? grad : Vec{};
                const Vec result = a * here + (b * max.x[k] + d);
                store_tile<Vec, 1>(grad_input + p.window_index(i, j, k, offset), &result, 0, nontemporal);
            }
        });
        store_fence();
    }
}
REGISTER(rewire_batch_norm_pool_grad_input);
