// Steps on one sample that move activations or add them.
#include <cstring>

#include "sample_program.hpp"
#include "simd.hpp"

namespace rewire {
namespace {

// to[j] = from[j * stride]; STRIDE: the same, if it is known when this is compiled, else 0.
template <int STRIDE> void copy_strided(int32_t stride, const float *from, float *to, int32_t count) {
    for (int32_t j = 0; j < count; j++) to[j] = from[int64_t(j) * (STRIDE ? STRIDE : stride)];
}

}  // namespace

// Copies the pixels, not the border. A flattened target has one channel for each of them.
void copy(const Step &step, const ProgramMemory &memory, const ThreadShare &share) {
    const Activation &from = step.source, &to = step.target;
    const bool flatten = to.channels != from.channels;
    const int64_t row_stride = flatten ? from.width : to.row_stride;
    const int64_t channel_stride = flatten ? from.height * row_stride : to.channel_stride;
    for (int64_t c = share.begin(from.channels); c < share.end(from.channels); c++)
        for (int64_t y = 0; y < from.height; y++)
            std::memcpy(memory.write(to) + to.origin + c * channel_stride + y * row_stride,
                        memory.read(from) + from.origin + c * from.channel_stride + y * from.row_stride,
                        sizeof(float) * size_t(from.width));
}

// Splits every channel into one padded plane for each phase of the stride (space to depth), so that the pixels which a tap of
// a strided convolution reads lie side by side.
void space_to_depth(const Step &step, const ProgramMemory &memory, const ThreadShare &share) {
    const Activation &from = step.source, &to = step.target;
    const StepWindow &w = step.window;
    const int64_t planes = int64_t(w.phases) * from.channels;
    for (int64_t at = share.begin(planes); at < share.end(planes); at++) {
        const int32_t phase = step.col_idx[at / from.channels];
        const float *input = memory.read(from) + at % from.channels * from.channel_stride + from.origin;
        float *plane = memory.write(to) + at * to.channel_stride;
        std::memset(plane, 0, sizeof(float) * size_t(to.channel_stride));
        const int32_t left = phase % w.stride_x - w.pad_x, top = phase / w.stride_x - w.pad_y;
        const int32_t begin = std::max(0, (-left + w.stride_x - 1) / w.stride_x);
        const int32_t end = std::min(to.row_stride, (from.width - left + w.stride_x - 1) / w.stride_x);
        if (end <= begin) continue;
        for (int32_t i = 0; i < to.height; i++) {
            const int32_t y = i * w.stride_y + top;
            if (y < 0 || y >= from.height) continue;
            const float *row = input + int64_t(y) * from.row_stride + left + begin * w.stride_x;
            float *write = plane + int64_t(i) * to.row_stride + begin;
            if (w.stride_x == 1) std::memcpy(write, row, sizeof(float) * size_t(end - begin));
            else if (w.stride_x == 2) copy_strided<2>(2, row, write, end - begin);
            else copy_strided<0>(w.stride_x, row, write, end - begin);
        }
    }
}

// Elementwise over whole planes: borders are zero and stay zero.
void add(const Step &step, const ProgramMemory &memory, const ThreadShare &share) {
    const ClampRange range(step.relu, step.limit);
    const int64_t size = step.target.channels * step.target.channel_stride;
    const float *input = memory.read(step.source), *addend = step.addend.channels ? memory.read(step.addend) : nullptr;
    float *output = memory.write(step.target);
    for (int64_t at = share.begin(size); at < share.end(size); at++)
        output[at] = clamp<float>(addend ? input[at] + addend[at] : input[at], range.low, range.high);
}

}  // namespace rewire
