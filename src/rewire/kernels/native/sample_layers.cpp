// Linear layers and convolutions on one sample.
//
// A convolution runs along the pixels: borders are written out as zeros, so a weight multiplies one unbroken span of an input
// plane, shifted by its tap. What is computed for the gaps between rows of pixels is overwritten by zeros afterwards. A layer
// with one output pixel is a dot product for each output channel.
#include "batch_tile.hpp"
#include "sample_program.hpp"
#include "simd.hpp"

// GCC would vectorise the gathered dot product with gather instructions, which take longer than what they save.
#if defined(__GNUC__) && !defined(__clang__)
#define NOT_VECTORISED __attribute__((noinline, optimize("no-tree-vectorize", "no-tree-slp-vectorize")))
#else
#define NOT_VECTORISED __attribute__((noinline))
#endif

namespace rewire {
namespace {

// Calls work(integral_constant) with `count`, which is known only at run time and at most MAX.
template <int MAX, class Work> void with_constant(int count, Work work) {
    if (count == MAX) return work(std::integral_constant<int, MAX>{});
    if constexpr (MAX > 1) with_constant<MAX - 1>(count, work);
}

// Cuts a span of whole vectors into tiles of at most MAX_VECTORS, all about equally long: a short tile takes as long as a long
// one.
template <int MAX_VECTORS, class Work> void for_each_even_tile(int64_t length, Work work) {
    const int64_t vectors = length / WIDTH, tiles = (vectors + MAX_VECTORS - 1) / MAX_VECTORS;
    for (int64_t tile = 0; tile < tiles; tile++) {
        const int64_t from = vectors * tile / tiles, to = vectors * (tile + 1) / tiles;
        with_constant<MAX_VECTORS>(int(to - from), [&](auto count) {
            work(BatchTile<Vector, decltype(count)::value>{}, from * WIDTH);
        });
    }
}

// The first row of part `part` of `parts`, so that all parts have about as many non-zeros.
int32_t first_row(const int32_t *row_ptr, int32_t rows, int32_t part, int32_t parts) {
    const int64_t cost = (row_ptr[rows] + int64_t(rows) * ROW_OVERHEAD) * part / parts;
    int32_t low = 0, high = rows;
    while (low < high) {
        const int32_t middle = (low + high) / 2;
        if (row_ptr[middle] + int64_t(middle) * ROW_OVERHEAD < cost) low = middle + 1;
        else high = middle;
    }
    return low;
}

// What all rows of a layer have in common.
struct LayerArgs {
    const Step &step;
    const float *input, *addend;
    float *output;
    ClampRange range;
    int64_t length;  // the span of an output plane in whole vectors

    LayerArgs(const Step &step, const ProgramMemory &memory)
        : step(step), input(memory.read(step.source)),
          addend(step.addend.channels ? memory.read(step.addend) + step.target.origin : nullptr),
          output(memory.write(step.target) + step.target.origin), range(step.relu, step.limit),
          length((step.target.span() + WIDTH - 1) / WIDTH * WIDTH) {}

    float bias(int32_t row) const { return step.bias ? step.bias[row] : 0.f; }

    // Adds the addend, clamps and writes.
    template <class Vec, int VECTORS> void finish(Vec *sum, int32_t row, int64_t at) const {
        const int64_t index = row * step.target.channel_stride + at;
        const Vec low = broadcast<Vec>(range.low), high = broadcast<Vec>(range.high);
        if (addend) UNROLL for (int v = 0; v < VECTORS; v++) sum[v] += load<Vec>(addend + index + v * lanes<Vec>);
        UNROLL for (int v = 0; v < VECTORS; v++) store<Vec>(output + index + v * lanes<Vec>, clamp<Vec>(sum[v], low, high));
    }

    // Zeros in the gaps between the rows of pixels, and behind the last pixel: they are the border for the next layer.
    void clear_gaps(int32_t row_begin, int32_t row_end) const {
        const Activation &a = step.target;
        for (int32_t row = row_begin; row < row_end; row++) {
            float *plane = output + row * a.channel_stride;
            for (int32_t y = 0; y + 1 < a.height; y++)
                for (int32_t x = a.width; x < a.row_stride; x++) plane[int64_t(y) * a.row_stride + x] = 0.f;
            for (int64_t at = a.span(); at < length; at++) plane[at] = 0.f;
        }
    }
};

template <class Tile> void sparse_rows(const LayerArgs &args, int32_t row_begin, int32_t row_end, int64_t at) {
    typedef typename Tile::Vec Vec;
    constexpr int VECTORS = Tile::vectors;
    constexpr int SETS = VECTORS <= 4 ? 2 : 1;  // few sums would wait for each other: two sets of them, added at the end
    const Step &step = args.step;
    for (int32_t row = row_begin; row < row_end; row++) {
        Vec sum[SETS][VECTORS];
        UNROLL for (int set = 0; set < SETS; set++) UNROLL for (int v = 0; v < VECTORS; v++) sum[set][v] = Vec{};
        const auto multiply = [&](Vec *sums, int32_t k) {
            const float *read = args.input + step.col_idx[k] + at;
            const Vec value = broadcast<Vec>(step.values[k]);
            UNROLL for (int v = 0; v < VECTORS; v++) sums[v] += value * load<Vec>(read + v * lanes<Vec>);
        };
        const int32_t end = step.row_ptr[row + 1];
        int32_t k = step.row_ptr[row];
        for (; k + SETS <= end; k += SETS) UNROLL for (int set = 0; set < SETS; set++) multiply(sum[set], k + set);
        if (SETS > 1 && k < end) multiply(sum[0], k);
        const Vec bias = broadcast<Vec>(args.bias(row));
        UNROLL for (int v = 0; v < VECTORS; v++) sum[0][v] += SETS > 1 ? bias + sum[SETS - 1][v] : bias;
        args.finish<Vec, VECTORS>(sum[0], row, at);
    }
}

// ROWS rows that share what they load.
template <class Tile, int ROWS> void dense_rows(const LayerArgs &args, int32_t row, int64_t at) {
    typedef typename Tile::Vec Vec;
    constexpr int VECTORS = Tile::vectors;
    const Step &step = args.step;
    const float *values = step.values + row * step.columns;
    const float *input = args.input + row / step.outputs_per_group * step.group_stride + at;
    Vec sum[ROWS][VECTORS];
    UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int v = 0; v < VECTORS; v++) sum[r][v] = broadcast<Vec>(args.bias(row + r));
    for (int64_t k = 0; k < step.columns; k++) {
        const float *read = input + step.col_idx[k];
        Vec x[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) x[v] = load<Vec>(read + v * lanes<Vec>);
        UNROLL for (int r = 0; r < ROWS; r++) {
            const Vec value = broadcast<Vec>(values[r * step.columns + k]);
            UNROLL for (int v = 0; v < VECTORS; v++) sum[r][v] += value * x[v];
        }
    }
    UNROLL for (int r = 0; r < ROWS; r++) args.finish<Vec, VECTORS>(sum[r], row + r, at);
}

// The sum of values[k] * input[col_idx[k]].
NOT_VECTORISED float gathered_dot(const float *values, const int32_t *col_idx, int64_t count, const float *input) {
    float sum[GATHER_SUMS] = {};
    int64_t k = 0;
    for (; k + GATHER_SUMS <= count; k += GATHER_SUMS)
        UNROLL for (int i = 0; i < GATHER_SUMS; i++) sum[i] += values[k + i] * input[col_idx[k + i]];
    for (; k < count; k++) sum[0] += values[k] * input[col_idx[k]];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

// The sum of values[k] * input[k].
float contiguous_dot(const float *values, int64_t count, const float *input) {
    Vector sum[DOT_SUMS] = {};
    int64_t k = 0;
    for (; k + DOT_SUMS * WIDTH <= count; k += DOT_SUMS * WIDTH)
        UNROLL for (int i = 0; i < DOT_SUMS; i++)
            sum[i] += load<Vector>(values + k + i * WIDTH) * load<Vector>(input + k + i * WIDTH);
    float total = horizontal_add<Vector>((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; k < count; k++) total += values[k] * input[k];
    return total;
}

// Adds bias and addend to a dot product, clamps and writes.
void store_dot(const LayerArgs &args, int32_t row, float sum) {
    const int64_t index = row * args.step.target.channel_stride;
    sum += args.bias(row) + (args.addend ? args.addend[index] : 0.f);
    args.output[index] = clamp<float>(sum, args.range.low, args.range.high);
}

}  // namespace

void sparse_conv(const Step &step, const ProgramMemory &memory, const ThreadShare &share) {
    const LayerArgs args(step, memory);
    const int32_t rows = step.target.channels;
    const int32_t row_begin = first_row(step.row_ptr, rows, share.thread, share.threads);
    const int32_t row_end = first_row(step.row_ptr, rows, share.thread + 1, share.threads);
    for_each_even_tile<SAMPLE_TILE>(args.length, [&](auto tile, int64_t at) {
        sparse_rows<decltype(tile)>(args, row_begin, row_end, at);
    });
    args.clear_gaps(row_begin, row_end);
}

void dense_conv(const Step &step, const ProgramMemory &memory, const ThreadShare &share) {
    constexpr int ROWS = SAMPLE_ROWS;
    const LayerArgs args(step, memory);
    const int32_t rows = step.target.channels, blocks = (rows + ROWS - 1) / ROWS;
    const int32_t row_begin = share.begin(blocks) * ROWS, row_end = std::min<int32_t>(rows, share.end(blocks) * ROWS);
    for_each_even_tile<SAMPLE_DENSE_TILE>(args.length, [&](auto tile, int64_t at) {
        typedef decltype(tile) Tile;
        for (int32_t row = row_begin; row < row_end;) {
            const bool same_group = row / step.outputs_per_group == (row + ROWS - 1) / step.outputs_per_group;
            const bool together = row + ROWS <= row_end && same_group;
            if (together) dense_rows<Tile, ROWS>(args, row, at);
            else dense_rows<Tile, 1>(args, row, at);
            row += together ? ROWS : 1;
        }
    });
    args.clear_gaps(row_begin, row_end);
}

void sparse_dot(const Step &step, const ProgramMemory &memory, const ThreadShare &share) {
    const LayerArgs args(step, memory);
    const int32_t rows = step.target.channels, *row_ptr = step.row_ptr;
    const int32_t row_end = first_row(row_ptr, rows, share.thread + 1, share.threads);
    for (int32_t row = first_row(row_ptr, rows, share.thread, share.threads); row < row_end; row++) {
        const int32_t k = row_ptr[row], count = row_ptr[row + 1] - k;
        store_dot(args, row, gathered_dot(step.values + k, step.col_idx + k, count, args.input - row * step.row_size));
    }
}

void dense_dot(const Step &step, const ProgramMemory &memory, const ThreadShare &share) {
    const LayerArgs args(step, memory);
    for (int32_t row = share.begin(step.target.channels); row < share.end(step.target.channels); row++) {
        const float *values = step.values + row * step.columns;
        const float *input = args.input + row / step.outputs_per_group * step.group_stride;
        store_dot(args, row, step.col_idx ? gathered_dot(values, step.col_idx, step.columns, input)
                                          : contiguous_dot(values, step.columns, input));
    }
}

}  // namespace rewire
