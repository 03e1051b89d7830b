// Inference on one sample: a network is a list of steps from activation to activation, which runs in one native call.
//
// There is no batch to vectorise over, so activations are planar (NCHW with N = 1): one plane for each channel, and vectors run
// along the pixels. A plane may have a border of zeros, so that a convolution can read beyond the edge.
#pragma once
#include <cstdint>

namespace rewire {

// In place of an offset into the program's memory: the program's input, and its output.
constexpr int64_t INPUT = -1, OUTPUT = -2;

// A plane has `height` rows of `width` pixels, `row_stride` floats apart, the first pixel at `origin`; the rest of it is zeros.
// A plane of several pixels has room for whole vectors behind its last pixel.
struct Activation {
    int64_t offset, channel_stride;
    int32_t channels, height, width, row_stride, origin;

    int64_t span() const { return int64_t(height - 1) * row_stride + width; }  // from the first pixel to the end of the last
};

// The window of a pooling step, or the stride and padding of a space-to-depth step.
struct StepWindow {
    int32_t height, width, stride_y, stride_x, pad_y, pad_x;
    int32_t count_padding;  // average pooling: whether padding counts
    int32_t phases;         // space to depth: how many planes are made of each channel
};

// `CONV` steps write several pixels, `DOT` steps one (linear layers, and convolutions whose output is one pixel).
enum StepKind : int32_t { COPY, SPACE_TO_DEPTH, SPARSE_CONV, DENSE_CONV, SPARSE_DOT, DENSE_DOT, ADD, MAX_POOL, AVG_POOL };

struct Step {
    int32_t kind, relu;
    float limit;
    int32_t outputs_per_group;
    Activation source, addend, target;  // `addend` is added if it has channels; it has the layout of `target`
    StepWindow window;
    const int32_t *row_ptr;  // sparse: [out_channels + 1]
    const int32_t *col_idx;  // what each weight reads, in floats from the start of `source`; space to depth: the phases
    const float *values, *bias;
    int64_t row_size;      // sparse dot: nonzero if col_idx are flat positions, where row r starts at r * row_size
    int64_t columns;       // dense: weights of a row
    int64_t group_stride;  // dense: floats from the input of one group to that of the next
};

struct ProgramMemory {
    const float *input;
    float *output, *own;

    const float *read(const Activation &a) const { return a.offset == INPUT ? input : own + a.offset; }
    float *write(const Activation &a) const { return a.offset == OUTPUT ? output : own + a.offset; }
};

// The part of a step that one thread computes.
struct ThreadShare {
    int32_t thread, threads;

    int64_t begin(int64_t size) const { return size * thread / threads; }
    int64_t end(int64_t size) const { return size * (thread + 1) / threads; }
};

// sample_layers.cpp
void sparse_conv(const Step &step, const ProgramMemory &memory, const ThreadShare &share);
void dense_conv(const Step &step, const ProgramMemory &memory, const ThreadShare &share);
void sparse_dot(const Step &step, const ProgramMemory &memory, const ThreadShare &share);
void dense_dot(const Step &step, const ProgramMemory &memory, const ThreadShare &share);

// sample_moves.cpp
void copy(const Step &step, const ProgramMemory &memory, const ThreadShare &share);
void space_to_depth(const Step &step, const ProgramMemory &memory, const ThreadShare &share);
void add(const Step &step, const ProgramMemory &memory, const ThreadShare &share);

// sample_pooling.cpp
void max_pool(const Step &step, const ProgramMemory &memory, const ThreadShare &share);
void avg_pool(const Step &step, const ProgramMemory &memory, const ThreadShare &share);

}  // namespace rewire
