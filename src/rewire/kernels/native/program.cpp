// Runs a network on one sample in one call: the threads stay together from the first layer to the last.
#include <omp.h>

#include <cstring>

#include "planes.hpp"
#include "tables.hpp"
#include "vector.hpp"

namespace rewire {
namespace {

// The pixels alone. A flat target has a channel for each of them.
void copy(const Map &from, const Map &to, const Memory &memory, const Share &share) {
    const bool flat = to.channels != from.channels;
    const int64_t pitch = flat ? from.width : to.pitch, plane = flat ? from.height * pitch : to.plane;
    for (int64_t c = share.from(from.channels); c < share.to(from.channels); c++)
        for (int64_t y = 0; y < from.height; y++)
            std::memcpy(memory.write(to) + to.first + c * plane + y * pitch,
                        memory.read(from) + from.first + c * from.plane + y * from.pitch, sizeof(float) * size_t(from.width));
}

template <int STEP> void every(int32_t step, const float *from, float *to, int32_t count) {
    for (int32_t j = 0; j < count; j++) to[j] = from[int64_t(j) * (STEP ? STEP : step)];
}

// One copy of the map for each step of the stride, with its border, so that the pixels which a tap reads lie side by side.
void copy_phases(const Step &step, const Memory &memory, const Share &share) {
    const Map &from = step.from, &to = step.to;
    const Window &w = step.window;
    for (int64_t at = share.from(int64_t(w.phases) * from.channels); at < share.to(int64_t(w.phases) * from.channels); at++) {
        const int32_t phase = step.offset[at / from.channels];
        const float *in = memory.read(from) + at % from.channels * from.plane + from.first;
        float *plane = memory.write(to) + at * to.plane;
        std::memset(plane, 0, sizeof(float) * size_t(to.plane));
        const int32_t left = phase % w.stride_x - w.pad_x, top = phase / w.stride_x - w.pad_y;
        const int32_t begin = std::max(0, (-left + w.stride_x - 1) / w.stride_x);
        const int32_t end = std::min(to.pitch, (from.width - left + w.stride_x - 1) / w.stride_x);
        if (end <= begin) continue;
        for (int32_t i = 0; i < to.height; i++) {
            const int32_t y = i * w.stride_y + top;
            if (y < 0 || y >= from.height) continue;
            const float *row = in + int64_t(y) * from.pitch + left + begin * w.stride_x;
            float *write = plane + int64_t(i) * to.pitch + begin;
            if (w.stride_x == 1) std::memcpy(write, row, sizeof(float) * size_t(end - begin));
            else if (w.stride_x == 2) every<2>(2, row, write, end - begin);
            else every<0>(w.stride_x, row, write, end - begin);
        }
    }
}

// Elementwise over whole planes: what is no pixel is zero and stays so.
void add(const Step &step, const Memory &memory, const Share &share) {
    const Range range(step.active, step.limit);
    const int64_t size = step.to.channels * step.to.plane;
    const float *in = memory.read(step.from), *other = step.other.channels ? memory.read(step.other) : nullptr;
    float *out = memory.write(step.to);
    for (int64_t at = share.from(size); at < share.to(size); at++)
        out[at] = clamp<float>(other ? in[at] + other[at] : in[at], range.low, range.high);
}

struct Largest {
    static constexpr float first = -std::numeric_limits<float>::infinity();
    template <class V> static V both(V a, V b) { return (b > a) | (b != b) ? b : a; }  // as torch: what is no number wins
};

struct Sum {
    static constexpr float first = 0.f;
    template <class V> static V both(V a, V b) { return a + b; }
};

// Along one axis: the pixels of a window that lie inside, and how many an average counts.
struct Span {
    int32_t begin, end, counted;

    Span(int32_t at, int32_t kernel, int32_t stride, int32_t pad, int32_t size, bool counts_padding) {
        const int32_t first = at * stride - pad, last = std::min(first + kernel, size + pad);
        begin = std::max(first, 0), end = std::min(last, size);
        counted = counts_padding ? last - first : end - begin;
    }
};

// Two by two pixels to one, of the columns from `x` on as many as fill vectors; where it stopped.
template <class How, class V> int32_t halve(const float *upper, const float *lower, float *out, int32_t x, int32_t width) {
    constexpr int W = lanes<V>;
    for (; x + W <= width; x += W) {
        const V left = How::both(load<V>(upper + 2 * x), load<V>(lower + 2 * x));
        const V right = How::both(load<V>(upper + 2 * x + W), load<V>(lower + 2 * x + W));
        store<V>(out + x, How::both(evens(left, right), odds(left, right)));
    }
    return x;
}

// One row of outputs.
template <class How> void pool_row(const Step &step, const float *in, const Span &tall, float *out) {
    const Map &from = step.from, &to = step.to;
    const Window &w = step.window;
    int32_t x = 0;
    if (w.height == 2 && w.width == 2 && w.stride_x == 2 && !w.pad_x && tall.end - tall.begin == 2) {
        const float *upper = in + int64_t(tall.begin) * from.pitch, *lower = upper + from.pitch;
        x = halve<How, Quad>(upper, lower, out, halve<How, Vector>(upper, lower, out, 0, to.width), to.width);
    }
    for (int32_t rest = x; rest < to.width; rest++) {
        const Span broad(rest, w.width, w.stride_x, w.pad_x, from.width, w.counts_padding);
        float all = How::first;
        for (int32_t y = tall.begin; y < tall.end; y++)
            for (int32_t i = broad.begin; i < broad.end; i++) all = How::both(all, in[int64_t(y) * from.pitch + i]);
        out[rest] = step.kind == AVERAGE_POOL ? all / float(tall.counted * broad.counted) : all;
    }
    for (int32_t done = 0; done < x && step.kind == AVERAGE_POOL; done++) out[done] /= 4;
}

template <class How> void pool(const Step &step, const Memory &memory, const Share &share) {
    const Map &from = step.from, &to = step.to;
    const Window &w = step.window;
    for (int64_t c = share.from(to.channels); c < share.to(to.channels); c++)
        for (int32_t y = 0; y < to.height; y++) {
            const float *in = memory.read(from) + c * from.plane + from.first;
            float *out = memory.write(to) + c * to.plane + to.first + int64_t(y) * to.pitch;
            pool_row<How>(step, in, Span(y, w.height, w.stride_y, w.pad_y, from.height, w.counts_padding), out);
        }
}

void take(const Step &step, const Memory &memory, const Share &share) {
    switch (step.kind) {
        case COPY: return copy(step.from, step.to, memory, share);
        case PHASES: return copy_phases(step, memory, share);
        case SPARSE: return sparse_convolution(step, memory, share);
        case DENSE: return dense_convolution(step, memory, share);
        case SPARSE_DOT: return sparse_dot(step, memory, share);
        case DENSE_DOT: return dense_dot(step, memory, share);
        case ADD: return add(step, memory, share);
        case MAX_POOL: return pool<Largest>(step, memory, share);
        case AVERAGE_POOL: return pool<Sum>(step, memory, share);
    }
}

}  // namespace
}  // namespace rewire

using namespace rewire;

// What each weight of a sparse layer reads, from sorted positions: reach[tap] floats plus a plane for each channel. Without
// `offset` only the beginnings of the rows are found.
EXPORT void rewire_program_tables(const Layer *layer, const void *positions, int wide, int64_t nnz, const int32_t *reach,
                                  int64_t plane, int32_t *begin, int32_t *offset) {
    const int64_t row = int64_t(layer->inputs) * layer->taps;
    const int32_t per_group = layer->outputs / layer->groups;
    std::memset(begin, 0, sizeof(int32_t) * (layer->outputs + 1));
    for (int64_t k = 0; k < nnz; k++) {
        const int64_t at = wide ? static_cast<const int64_t *>(positions)[k] : static_cast<const int32_t *>(positions)[k];
        const int64_t output = at / row, input = at % row / layer->taps, tap = at % layer->taps;
        begin[output + 1]++;
        if (offset) offset[k] = int32_t(reach[tap] + (output / per_group * layer->inputs + input) * plane);
    }
    for (int32_t output = 0; output < layer->outputs; output++) begin[output + 1] += begin[output];
}

EXPORT void rewire_program(const Step *steps, int32_t count, const float *input, float *output, float *own, int threads) {
    const Memory memory{input, output, own};
#pragma omp parallel num_threads(threads)
    {
        const Share share{omp_get_thread_num(), omp_get_num_threads()};
        for (int32_t i = 0; i < count; i++) {
            take(steps[i], memory, share);
#pragma omp barrier
        }
    }
}
