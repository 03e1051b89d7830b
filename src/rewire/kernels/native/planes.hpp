// One sample: maps are planes, one for each channel, and a network is a list of steps from map to map.
#pragma once
#include <cstdint>

namespace rewire {

// Where a map is: in the memory of the program, or what it was given, or where its result goes.
constexpr int64_t INPUT = -1, OUTPUT = -2;

// A plane has `height` rows of `width` pixels, `pitch` floats apart, from `first` on; the rest of it is zeros, so that a
// convolution may read beyond the edge. A plane of several pixels has room for whole vectors behind its last one.
struct Map {
    int64_t at, plane;
    int32_t channels, height, width, pitch, first;

    int64_t run() const { return int64_t(height - 1) * pitch + width; }  // from the first pixel to the last
};

struct Window {
    int32_t height, width, stride_y, stride_x, pad_y, pad_x;
    int32_t counts_padding;  // whether an average does
    int32_t phases;          // how many of them are copied
};

enum Kind : int32_t { COPY, PHASES, SPARSE, DENSE, SPARSE_DOT, DENSE_DOT, ADD, MAX_POOL, AVERAGE_POOL };

struct Step {
    int32_t kind, active;
    float limit;
    int32_t per_group;  // rows of one group
    Map from, other, to;  // `other` is added if it has channels, and lies in memory as `to` does
    Window window;
    const int32_t *begin;   // [rows + 1] of a sparse layer
    const int32_t *offset;  // what a weight reads, in floats from the start of `from`; or the phases
    const float *values, *bias;
    int64_t row_step;    // sparse dot: what every row takes off its offsets
    int64_t count;       // dense: weights of a row
    int64_t group_step;  // dense: floats from what one group reads to what the next one does
};

// The memory that the maps of a program are in.
struct Memory {
    const float *input;
    float *output, *own;

    const float *read(const Map &map) const { return map.at == INPUT ? input : own + map.at; }
    float *write(const Map &map) const { return map.at == OUTPUT ? output : own + map.at; }
};

// One of several threads that share the work.
struct Share {
    int32_t part, parts;

    int64_t from(int64_t size) const { return size * part / parts; }
    int64_t to(int64_t size) const { return size * (part + 1) / parts; }
};

// planes.cpp
void sparse_convolution(const Step &step, const Memory &memory, const Share &share);
void dense_convolution(const Step &step, const Memory &memory, const Share &share);
void sparse_dot(const Step &step, const Memory &memory, const Share &share);
void dense_dot(const Step &step, const Memory &memory, const Share &share);

}  // namespace rewire
