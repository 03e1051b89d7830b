// Max and average pooling over activations in HWCN layout: [height][width][pixel_size], channels and batch alike.
#include "pooling.hpp"

#include <algorithm>
#include <limits>

#include "entry_point.hpp"
#include "tuning.hpp"

namespace rewire {
namespace {

// Calls work(index of an input pixel) for every pixel inside of the window of output pixel (y, x).
template <class Work> inline void for_each_in_window(const PoolShape &s, int32_t y, int32_t x, Work work) {
    const int32_t top = y * s.stride_y - s.pad_y, left = x * s.stride_x - s.pad_x;
    for (int32_t i = std::max(top, 0); i < std::min(top + s.kernel_y, s.height); i++)
        for (int32_t j = std::max(left, 0); j < std::min(left + s.kernel_x, s.width); j++)
            work((int64_t(i) * s.width + j) * s.pixel_size);
}

// Calls work(y, x, offset within the pixel, output index, size) for every output pixel, a chunk of it at a time.
//
// Windows that do not overlap write to different inputs in the backward pass: threads then split the output pixels, and memory
// is read in order. Otherwise each thread owns some chunks of all pixels.
template <class Work> void for_each_chunk(const PoolShape &s, int threads, Work work) {
    const int64_t chunks = (s.pixel_size + POOL_CHUNK - 1) / POOL_CHUNK;
    const auto one_chunk = [&](int32_t y, int32_t x, int64_t chunk) {
        const int64_t at = chunk * POOL_CHUNK, size = std::min(POOL_CHUNK, s.pixel_size - at);
        work(y, x, at, (int64_t(y) * s.out_width + x) * s.pixel_size + at, size);
    };
    if (s.kernel_y <= s.stride_y && s.kernel_x <= s.stride_x) {
#pragma omp parallel for num_threads(threads) schedule(static) collapse(2)
        for (int32_t y = 0; y < s.out_height; y++)
            for (int32_t x = 0; x < s.out_width; x++)
                for (int64_t chunk = 0; chunk < chunks; chunk++) one_chunk(y, x, chunk);
    } else {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t chunk = 0; chunk < chunks; chunk++)
            for (int32_t y = 0; y < s.out_height; y++)
                for (int32_t x = 0; x < s.out_width; x++) one_chunk(y, x, chunk);
    }
}

// Whether a value replaces the largest so far; NaN does, as in torch.
inline bool replaces_max(float value, float max) { return value > max || value != value; }

}  // namespace
}  // namespace rewire

using namespace rewire;

// The largest inside of each window; padding never counts.
EXPORT void rewire_max_pool(const PoolShape *shape, const float *x, float *y, int threads) {
    const PoolShape &s = *shape;
    for_each_chunk(s, threads, [&](int32_t i, int32_t j, int64_t at, int64_t out, int64_t size) {
        float *max = y + out;
        std::fill(max, max + size, -std::numeric_limits<float>::infinity());
        for_each_in_window(s, i, j, [&](int64_t pixel) {
            const float *in = x + pixel + at;
#pragma omp simd
            for (int64_t n = 0; n < size; n++) max[n] = replaces_max(in[n], max[n]) ? in[n] : max[n];
        });
    });
}
REGISTER(rewire_max_pool);

// The gradient goes to the largest of a window, of equal ones to the first. `grad_input` must be zero.
EXPORT void rewire_max_pool_backward(const PoolShape *shape, const float *x, const float *grad_output, float *grad_input,
                                     int threads) {
    const PoolShape &s = *shape;
    for_each_chunk(s, threads, [&](int32_t i, int32_t j, int64_t at, int64_t out, int64_t size) {
        float max[POOL_CHUNK];
        int32_t argmax[POOL_CHUNK], index = 0;
        std::fill(max, max + size, -std::numeric_limits<float>::infinity());
        std::fill(argmax, argmax + size, 0);
        for_each_in_window(s, i, j, [&](int64_t pixel) {
            const float *in = x + pixel + at;
#pragma omp simd
            for (int64_t n = 0; n < size; n++) {
                const bool wins = replaces_max(in[n], max[n]);
                max[n] = wins ? in[n] : max[n];
                argmax[n] = wins ? index : argmax[n];
            }
            index++;
        });
        index = 0;
        for_each_in_window(s, i, j, [&](int64_t pixel) {
            float *to = grad_input + pixel + at;
#pragma omp simd
            for (int64_t n = 0; n < size; n++) to[n] += argmax[n] == index ? grad_output[out + n] : 0.f;
            index++;
        });
    });
}
REGISTER(rewire_max_pool_backward);

// The sum inside of each window times scale[output pixel]: one over the number of pixels that the average counts.
EXPORT void rewire_avg_pool(const PoolShape *shape, const float *x, const float *scale, float *y, int threads) {
    const PoolShape &s = *shape;
    for_each_chunk(s, threads, [&](int32_t i, int32_t j, int64_t at, int64_t out, int64_t size) {
        float *total = y + out;
        const float factor = scale[int64_t(i) * s.out_width + j];
        std::fill(total, total + size, 0.f);
        for_each_in_window(s, i, j, [&](int64_t pixel) {
#pragma omp simd
            for (int64_t n = 0; n < size; n++) total[n] += factor * x[pixel + at + n];
        });
    });
}
REGISTER(rewire_avg_pool);

// `grad_input` must be zero.
EXPORT void rewire_avg_pool_backward(const PoolShape *shape, const float *grad_output, const float *scale, float *grad_input,
                                     int threads) {
    const PoolShape &s = *shape;
    for_each_chunk(s, threads, [&](int32_t i, int32_t j, int64_t at, int64_t out, int64_t size) {
        const float factor = scale[int64_t(i) * s.out_width + j];
        for_each_in_window(s, i, j, [&](int64_t pixel) {
#pragma omp simd
            for (int64_t n = 0; n < size; n++) grad_input[pixel + at + n] += factor * grad_output[out + n];
        });
    });
}
REGISTER(rewire_avg_pool_backward);
