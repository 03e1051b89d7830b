// Max and average pooling on one sample.
#include "sample_program.hpp"
#include "simd.hpp"

namespace rewire {
namespace {

struct Max {
    static constexpr float identity = -std::numeric_limits<float>::infinity();
    template <class Vec> static Vec combine(Vec a, Vec b) { return (b > a) | (b != b) ? b : a; }  // NaN wins, as in torch
    static float finish(float max, int32_t) { return max; }
};

struct Average {
    static constexpr float identity = 0.f;
    template <class Vec> static Vec combine(Vec a, Vec b) { return a + b; }
    static float finish(float sum, int32_t counted) { return sum / float(counted); }
};

// The pixels of a window along one axis that lie inside, and how many of them an average counts.
struct WindowRange {
    int32_t begin, end, counted;

    WindowRange(int32_t at, int32_t kernel, int32_t stride, int32_t pad, int32_t size, bool count_padding) {
        const int32_t first = at * stride - pad, last = std::min(first + kernel, size + pad);
        begin = std::max(first, 0), end = std::min(last, size);
        counted = count_padding ? last - first : end - begin;
    }
};

// 2x2 pooling of whole vectors of output columns from `x` on; returns the first column that is left.
template <class Reduction, class Vec>
int32_t pool_2x2(const float *upper, const float *lower, float *output, int32_t x, int32_t width) {
    constexpr int LANES = lanes<Vec>;
    for (; x + LANES <= width; x += LANES) {
        const Vec left = Reduction::combine(load<Vec>(upper + 2 * x), load<Vec>(lower + 2 * x));
        const Vec right = Reduction::combine(load<Vec>(upper + 2 * x + LANES), load<Vec>(lower + 2 * x + LANES));
        store<Vec>(output + x, Reduction::combine(even_lanes(left, right), odd_lanes(left, right)));
    }
    return x;
}

// One row of output pixels.
template <class Reduction>
void pool_row(const Step &step, const float *input, const WindowRange &rows, float *output) {
    const Activation &from = step.source, &to = step.target;
    const StepWindow &w = step.window;
    int32_t x = 0;
    if (w.height == 2 && w.width == 2 && w.stride_x == 2 && !w.pad_x && rows.end - rows.begin == 2) {
        const float *upper = input + int64_t(rows.begin) * from.row_stride, *lower = upper + from.row_stride;
        x = pool_2x2<Reduction, Vector>(upper, lower, output, 0, to.width);
        x = pool_2x2<Reduction, Quad>(upper, lower, output, x, to.width);
    }
    for (int32_t rest = x; rest < to.width; rest++) {
        const WindowRange columns(rest, w.width, w.stride_x, w.pad_x, from.width, w.count_padding);
        float total = Reduction::identity;
        for (int32_t y = rows.begin; y < rows.end; y++)
            for (int32_t i = columns.begin; i < columns.end; i++)
                total = Reduction::combine(total, input[int64_t(y) * from.row_stride + i]);
        output[rest] = Reduction::finish(total, rows.counted * columns.counted);
    }
    for (int32_t done = 0; done < x; done++) output[done] = Reduction::finish(output[done], 4);
}

template <class Reduction> void pool(const Step &step, const ProgramMemory &memory, const ThreadShare &share) {
    const Activation &from = step.source, &to = step.target;
    const StepWindow &w = step.window;
    for (int64_t c = share.begin(to.channels); c < share.end(to.channels); c++)
        for (int32_t y = 0; y < to.height; y++) {
            const float *input = memory.read(from) + c * from.channel_stride + from.origin;
            float *output = memory.write(to) + c * to.channel_stride + to.origin + int64_t(y) * to.row_stride;
            const WindowRange rows(y, w.height, w.stride_y, w.pad_y, from.height, w.count_padding);
            pool_row<Reduction>(step, input, rows, output);
        }
}

}  // namespace

void max_pool(const Step &step, const ProgramMemory &memory, const ThreadShare &share) { pool<Max>(step, memory, share); }
void avg_pool(const Step &step, const ProgramMemory &memory, const ThreadShare &share) { pool<Average>(step, memory, share); }

}  // namespace rewire
