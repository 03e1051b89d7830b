// One sample alone has no batch to run along. A convolution runs along the pixels instead: with the borders written out as
// zeros, a weight multiplies one unbroken piece of an input plane that is moved by its tap. A linear layer is a dot product.
#include <omp.h>

#include <cstring>

#include "scratch.hpp"
#include "tables.hpp"
#include "vector.hpp"

#if defined(__GNUC__) && !defined(__clang__)
#define SCALAR __attribute__((noinline, optimize("no-tree-vectorize", "no-tree-slp-vectorize")))
#else
#define SCALAR __attribute__((noinline))
#endif

namespace rewire {
namespace {

thread_local Scratch bordered, computed;

// Planes [channels][height][width] are copied into [phase][channels][tall][broad], one phase for each step of the
// stride, so that the pixels which a tap reads lie side by side whatever the stride is.
struct Single {
    int32_t channels, height, width, out_height, out_width;
    int32_t stride_y, stride_x, pad_y, pad_x, tall, broad;

    int64_t plane() const { return int64_t(tall) * broad; }
    int64_t size() const { return plane() * channels * stride_y * stride_x + broad + WIDTH; }
    int64_t run() const { return int64_t(out_height - 1) * broad + out_width; }  // pixels computed, some of them in vain
};

void write_borders(const Single &s, const float *input, float *to, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int32_t c = 0; c < s.channels; c++)
        for (int32_t phase = 0; phase < s.stride_y * s.stride_x; phase++) {
            float *plane = to + (int64_t(phase) * s.channels + c) * s.plane();
            std::memset(plane, 0, sizeof(float) * size_t(s.plane()));
            for (int32_t i = 0; i < s.tall; i++) {
                const int32_t y = i * s.stride_y + phase / s.stride_x - s.pad_y;
                if (y < 0 || y >= s.height) continue;
                const float *row = input + (int64_t(c) * s.height + y) * s.width;
                const int32_t first = phase % s.stride_x - s.pad_x;
                const int32_t from = std::max(0, (-first + s.stride_x - 1) / s.stride_x);
                const int32_t to_j = std::min(s.broad, (s.width - first + s.stride_x - 1) / s.stride_x);
                if (s.stride_x == 1 && to_j > from) {
                    std::memcpy(plane + int64_t(i) * s.broad + from, row + first + from, sizeof(float) * (to_j - from));
                } else {
                    for (int32_t j = from; j < to_j; j++) plane[int64_t(i) * s.broad + j] = row[first + j * s.stride_x];
                }
            }
        }
}

struct Weights {
    const int32_t *begin, *offset;  // [rows + 1], [nnz] floats from an output pixel to what is read
    const float *values, *bias;
};

template <class T> void run(const Weights &w, const float *in, float *out, int64_t length, int32_t from, int32_t to, int64_t at) {
    typedef typename T::V V;
    constexpr int Z = T::count, W = lanes<V>;
    for (int32_t row = from; row < to; row++) {
        V total[Z];
        const V first = spread<V>(w.bias ? w.bias[row] : 0.f);
        UNROLL for (int z = 0; z < Z; z++) total[z] = first;
        for (int32_t k = w.begin[row]; k < w.begin[row + 1]; k++) {
            const float *read = in + w.offset[k] + at;
            const V value = spread<V>(w.values[k]);
            UNROLL for (int z = 0; z < Z; z++) total[z] += value * load<V>(read + z * W);
        }
        UNROLL for (int z = 0; z < Z; z++) store<V>(out + row * length + at + z * W, total[z]);
    }
}

// Leaves out what was computed in vain.
void crop(const Single &s, const float *from, float *to, int32_t row, const Range &range) {
    const float *in = from + row * s.run();
    float *out = to + int64_t(row) * s.out_height * s.out_width;
    for (int32_t y = 0; y < s.out_height; y++)
        for (int32_t x = 0; x < s.out_width; x++)
            out[int64_t(y) * s.out_width + x] = clamp<float>(in[int64_t(y) * s.broad + x], range.low, range.high);
}

// Left as it is written: gathering into vectors takes longer than what they save.
SCALAR float dot(const float *values, const int32_t *positions, int32_t count, const float *input) {
    constexpr int SUMS = 8;  // apart from each other, or every product would wait for the one before
    float total[SUMS] = {};
    int32_t k = 0;
    for (; k + SUMS <= count; k += SUMS)
        UNROLL for (int i = 0; i < SUMS; i++) total[i] += values[k + i] * input[positions[k + i]];
    for (; k < count; k++) total[0] += values[k] * input[positions[k]];
    return ((total[0] + total[1]) + (total[2] + total[3])) + ((total[4] + total[5]) + (total[6] + total[7]));
}

}  // namespace
}  // namespace rewire

using namespace rewire;

// Offsets for rewire_single, from sorted positions: reach[tap] floats plus one plane for each channel.
EXPORT void rewire_single_tables(const Layer *layer, const void *positions, int wide, int64_t nnz, const int32_t *reach,
                                 int64_t plane, int32_t *begin, int32_t *offset) {
    const int64_t row = int64_t(layer->inputs) * layer->taps;
    const int32_t per_group = layer->outputs / layer->groups;
    std::memset(begin, 0, sizeof(int32_t) * (layer->outputs + 1));
    for (int64_t k = 0; k < nnz; k++) {
        const int64_t at = wide ? static_cast<const int64_t *>(positions)[k] : static_cast<const int32_t *>(positions)[k];
        const int64_t output = at / row, input = at % row / layer->taps, tap = at % layer->taps;
        begin[output + 1]++;
        offset[k] = int32_t(reach[tap] + (output / per_group * layer->inputs + input) * plane);
    }
    for (int32_t output = 0; output < layer->outputs; output++) begin[output + 1] += begin[output];
}

// One image [channels][height][width] to [rows][out height][out width].
EXPORT void rewire_single(const Single *single, int32_t rows, const int32_t *begin, const int32_t *offset, const float *input,
                          const float *values, const float *bias, float *output, int active, float limit, int threads) {
    const Single &s = *single;
    const Range range(active, limit);
    float *planes = bordered.take<float>(s.size()), *all = computed.take<float>(rows * s.run());
    const Weights w{begin, offset, values, bias};
    if (int64_t(begin[rows]) * s.run() < 1 << 18) threads = 1;
    write_borders(s, input, planes, threads);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int32_t part = 0; part < threads; part++) {
            const int32_t from = int64_t(rows) * part / threads, to = int64_t(rows) * (part + 1) / threads;
            cut<FORWARD_TILE>(s.run(), [&](auto tile, int64_t at, int) {
                run<decltype(tile)>(w, planes, all, s.run(), from, to, at);
            });
            for (int32_t row = from; row < to; row++) crop(s, all, output, row, range);
        }
    }
}

// One row of inputs: output[row] = bias[row] + sum of value * input[position in the row].
EXPORT void rewire_dot(int32_t rows, int64_t inputs, const int32_t *begin, const int32_t *positions, const float *input,
                       const float *values, const float *bias, float *output, int active, float limit, int threads) {
    const Range range(active, limit);
#pragma omp parallel for num_threads(begin[rows] < 1 << 16 ? 1 : threads) schedule(static)
    for (int32_t row = 0; row < rows; row++) {
        const float all = dot(values + begin[row], positions + begin[row], begin[row + 1] - begin[row], input - row * inputs);
        output[row] = clamp<float>(all + (bias ? bias[row] : 0.f), range.low, range.high);
    }
}
