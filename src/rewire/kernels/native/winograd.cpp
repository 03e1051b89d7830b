// Winograd transforms for the dense weight gradient of 3x3 convolutions with stride 1.
//
// A tile of 4x4 output gradients g and the 6x6 inputs x that it reads contribute a 3x3 correlation to the gradient of a weight:
//     A^T [ (G g G^T) * (B^T x B) ] A
// with an elementwise product: 36 multiplications instead of 144. Summed over all tiles and samples, the 36 products are matrix
// products of output channels and input channels (rewire/kernels/batch/winograd.py), which also multiplies by A. Here are G and
// B, the transforms for the interpolation points 0, 1, -1, 2, -2 and infinity.
#include <omp.h>

#include "entry_point.hpp"
#include "simd.hpp"

namespace rewire {
namespace {

constexpr int TILE = 4, PATCH = 6;  // pixels of a tile of output gradients, and of the input that it reads, in each direction

// B^T x for one column of six; `stride` is between the elements of `x` and of `y`.
struct InputTransform {
    static constexpr int size = PATCH;
    template <class Vec> static inline void apply(const Vec *x, Vec *y, int stride) {
        const Vec x0 = x[0], x1 = x[stride], x2 = x[2 * stride], x3 = x[3 * stride], x4 = x[4 * stride], x5 = x[5 * stride];
        const Vec even = x4 - 4.f * x2, odd = x3 - 4.f * x1, near = x4 - x2, far = 2.f * (x3 - x1);
        y[0] = 4.f * x0 - 5.f * x2 + x4;
        y[stride] = even + odd;
        y[2 * stride] = even - odd;
        y[3 * stride] = near + far;
        y[4 * stride] = near - far;
        y[5 * stride] = 4.f * x1 - 5.f * x3 + x5;
    }
};

// G g for one column of four.
struct GradTransform {
    static constexpr int size = TILE;
    template <class Vec> static inline void apply(const Vec *g, Vec *y, int stride) {
        const Vec g0 = g[0], g1 = g[stride], g2 = g[2 * stride], g3 = g[3 * stride];
        const Vec even = (g0 + g2) * (-1.f / 6), odd = (g1 + g3) * (-1.f / 6);
        const Vec near = g0 * (1.f / 24) + g2 * (1.f / 6), far = g1 * (1.f / 12) + g3 * (1.f / 3);
        y[0] = g0 * 0.25f;
        y[stride] = even + odd;
        y[2 * stride] = even - odd;
        y[3 * stride] = near + far;
        y[4 * stride] = near - far;
        y[5 * stride] = g3;
    }
};

// Transforms one vector of the batch: `pixel` has the addresses of a tile's pixels, null outside of the image. The 36 results are
// `to_stride` apart.
template <class Transform, class Vec> inline void transform(const float *const *pixel, int64_t at, float *to, int64_t to_stride) {
    constexpr int SIZE = Transform::size;
    Vec tile[PATCH * PATCH];  // [row][column]: SIZE x SIZE pixels at first, then more rows, then more columns
    UNROLL for (int row = 0; row < SIZE; row++) UNROLL for (int column = 0; column < SIZE; column++) {
        const float *from = pixel[row * SIZE + column];
        tile[row * PATCH + column] = from ? load<Vec>(from + at) : Vec{};
    }
    UNROLL for (int column = 0; column < SIZE; column++) Transform::apply(tile + column, tile + column, PATCH);
    UNROLL for (int row = 0; row < PATCH; row++) Transform::apply(tile + row * PATCH, tile + row * PATCH, 1);
    UNROLL for (int k = 0; k < PATCH * PATCH; k++) store<Vec>(to + at + k * to_stride, tile[k]);
}

// One channel of one tile, for the whole batch.
template <class Transform>
inline void transform_batch(const float *const *pixel, int64_t batch, float *to, int64_t to_stride) {
    int64_t at = 0;
    for (; at + WIDTH <= batch; at += WIDTH) transform<Transform, Vector>(pixel, at, to, to_stride);
    if (at == batch) return;
    if (batch >= WIDTH) return transform<Transform, Vector>(pixel, batch - WIDTH, to, to_stride);  // some lanes once more
    for (; at < batch; at++) transform<Transform, float>(pixel, at, to, to_stride);
}

template <class Transform>
void transform_tiles(const float *image, int32_t height, int32_t width, int32_t pixel_channels, int32_t channels, int64_t batch,
                     int32_t pad_y, int32_t pad_x, int32_t tiles_wide, int32_t first_tile, int32_t tiles, float *to,
                     int32_t threads) {
    constexpr int SIZE = Transform::size;
    const int64_t row_size = int64_t(tiles) * batch;
#pragma omp parallel for num_threads(threads) schedule(static) collapse(2)
    for (int32_t tile = 0; tile < tiles; tile++)
        for (int32_t channel = 0; channel < channels; channel++) {
            const int32_t top = (first_tile + tile) / tiles_wide * TILE - pad_y, left = (first_tile + tile) % tiles_wide * TILE - pad_x;
            const float *pixel[SIZE * SIZE];
            for (int k = 0; k < SIZE * SIZE; k++) {
                const int32_t y = top + k / SIZE, x = left + k % SIZE;
                const bool inside = y >= 0 && y < height && x >= 0 && x < width;
                pixel[k] = inside ? image + ((int64_t(y) * width + x) * pixel_channels + channel) * batch : nullptr;
            }
            transform_batch<Transform>(pixel, batch, to + channel * row_size + tile * batch, channels * row_size);
        }
}

}  // namespace
}  // namespace rewire

using namespace rewire;

// From an HWCN image, of whose channels the first `channels` are taken, to [36][channels][tiles][batch]: the transformed tiles
// from `first_tile` on, counted in rows of `tiles_wide`. Outside of the image there are zeros.
EXPORT void rewire_winograd_input(const float *image, int32_t height, int32_t width, int32_t pixel_channels, int32_t channels,
                                  int64_t batch, int32_t pad_y, int32_t pad_x, int32_t tiles_wide, int32_t first_tile,
                                  int32_t tiles, float *to, int32_t threads) {
    transform_tiles<InputTransform>(image, height, width, pixel_channels, channels, batch, pad_y, pad_x, tiles_wide, first_tile,
                                    tiles, to, threads);
}
REGISTER(rewire_winograd_input);

// The same for output gradients.
EXPORT void rewire_winograd_grad(const float *image, int32_t height, int32_t width, int32_t pixel_channels, int32_t channels,
                                 int64_t batch, int32_t tiles_wide, int32_t first_tile, int32_t tiles, float *to,
                                 int32_t threads) {
    transform_tiles<GradTransform>(image, height, width, pixel_channels, channels, batch, 0, 0, tiles_wide, first_tile, tiles, to,
                                   threads);
}
REGISTER(rewire_winograd_grad);
