// The layers of one sample. There is no batch to run along, so a convolution runs along the pixels: the border is written
// out as zeros, and a weight multiplies one unbroken piece of an input plane, moved by its tap. What is computed for the
// gaps between rows is thrown away. A layer with one output pixel is a dot product.
#include "planes.hpp"

#include "vector.hpp"

#if defined(__GNUC__) && !defined(__clang__)
#define SCALAR __attribute__((noinline, optimize("no-tree-vectorize", "no-tree-slp-vectorize")))
#else
#define SCALAR __attribute__((noinline))
#endif

namespace rewire {
namespace {

constexpr int ROWS = 4;                          // rows of a dense layer that share what they read
constexpr int SPARSE_TILE = 12;                  // vectors whose sums the registers hold
constexpr int DENSE_TILE = WIDTH == 16 ? 6 : 3;  // the same for each of ROWS
constexpr int32_t PER_ROW = 4;                   // what a row costs besides its weights, in weights

// Calls work with a number that is known only now, as a constant.
template <int MOST, class Work> void with_count(int count, Work work) {
    if (count == MOST) return work(std::integral_constant<int, MOST>{});
    if constexpr (MOST > 1) with_count<MOST - 1>(count, work);
}

// Cuts a run of whole vectors into tiles of at most MOST, all about equally long: a short one costs as much as a long one.
template <int MOST, class Work> void cut_evenly(int64_t length, Work work) {
    const int64_t vectors = length / WIDTH, tiles = (vectors + MOST - 1) / MOST;
    for (int64_t tile = 0; tile < tiles; tile++) {
        const int64_t from = vectors * tile / tiles, to = vectors * (tile + 1) / tiles;
        with_count<MOST>(int(to - from), [&](auto count) { work(Tile<Vector, decltype(count)::value>{}, from * WIDTH); });
    }
}

// The first row of a share, so that all have about as many weights.
int32_t first_row(const int32_t *begin, int32_t rows, int32_t part, int32_t parts) {
    const int64_t wanted = (begin[rows] + int64_t(rows) * PER_ROW) * part / parts;
    int32_t low = 0, high = rows;
    while (low < high) {
        const int32_t middle = (low + high) / 2;
        if (begin[middle] + int64_t(middle) * PER_ROW < wanted) low = middle + 1;
        else high = middle;
    }
    return low;
}

// What all rows of a convolution have in common.
struct Pass {
    const Step &step;
    const float *in, *other;
    float *out;
    Range range;
    int64_t length;

    Pass(const Step &step, const Memory &memory)
        : step(step), in(memory.read(step.from)), other(step.other.channels ? memory.read(step.other) + step.to.first : nullptr),
          out(memory.write(step.to) + step.to.first), range(step.active, step.limit),
          length((step.to.run() + WIDTH - 1) / WIDTH * WIDTH) {}

    float bias(int32_t row) const { return step.bias ? step.bias[row] : 0.f; }

    template <class V, int Z> void finish(V *total, int32_t row, int64_t at) const {
        const int64_t place = row * step.to.plane + at;
        const V low = spread<V>(range.low), high = spread<V>(range.high);
        if (other) UNROLL for (int z = 0; z < Z; z++) total[z] += load<V>(other + place + z * lanes<V>);
        UNROLL for (int z = 0; z < Z; z++) store<V>(out + place + z * lanes<V>, clamp<V>(total[z], low, high));
    }

    // The gaps between the rows of pixels, and what is left of the last vector, are borders of the next layer.
    void clear_gaps(int32_t from, int32_t to) const {
        const Map &map = step.to;
        for (int32_t row = from; row < to; row++) {
            float *plane = out + row * map.plane;
            for (int32_t y = 0; y + 1 < map.height; y++)
                for (int32_t x = map.width; x < map.pitch; x++) plane[int64_t(y) * map.pitch + x] = 0.f;
            for (int64_t at = map.run(); at < length; at++) plane[at] = 0.f;
        }
    }
};

template <class T> void sparse_rows(const Pass &pass, int32_t from, int32_t to, int64_t at) {
    typedef typename T::V V;
    constexpr int Z = T::count, SETS = Z <= 4 ? 2 : 1;  // few sums would wait for each other
    const Step &step = pass.step;
    for (int32_t row = from; row < to; row++) {
        V total[SETS][Z];
        UNROLL for (int set = 0; set < SETS; set++) UNROLL for (int z = 0; z < Z; z++) total[set][z] = V{};
        const auto multiply = [&](V *sums, int32_t k) {
            const float *read = pass.in + step.offset[k] + at;
            const V value = spread<V>(step.values[k]);
            UNROLL for (int z = 0; z < Z; z++) sums[z] += value * load<V>(read + z * lanes<V>);
        };
        const int32_t end = step.begin[row + 1];
        int32_t k = step.begin[row];
        for (; k + SETS <= end; k += SETS) UNROLL for (int set = 0; set < SETS; set++) multiply(total[set], k + set);
        if (SETS > 1 && k < end) multiply(total[0], k);
        const V first = spread<V>(pass.bias(row));
        UNROLL for (int z = 0; z < Z; z++) total[0][z] += SETS > 1 ? first + total[SETS - 1][z] : first;
        pass.finish<V, Z>(total[0], row, at);
    }
}

template <class T, int R> void dense_rows(const Pass &pass, int32_t row, int64_t at) {
    typedef typename T::V V;
    constexpr int Z = T::count;
    const Step &step = pass.step;
    const float *values = step.values + row * step.count;
    const float *in = pass.in + row / step.per_group * step.group_step + at;
    V total[R][Z];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int z = 0; z < Z; z++) total[r][z] = spread<V>(pass.bias(row + r));
    for (int64_t k = 0; k < step.count; k++) {
        const float *read = in + step.offset[k];
        V x[Z];
        UNROLL for (int z = 0; z < Z; z++) x[z] = load<V>(read + z * lanes<V>);
        UNROLL for (int r = 0; r < R; r++) {
            const V value = spread<V>(values[r * step.count + k]);
            UNROLL for (int z = 0; z < Z; z++) total[r][z] += value * x[z];
        }
    }
    UNROLL for (int r = 0; r < R; r++) pass.finish<V, Z>(total[r], row + r, at);
}

// Left as it is written: gathering into vectors takes longer than what they save.
SCALAR float gathered(const float *values, const int32_t *offset, int64_t count, const float *input) {
    constexpr int SUMS = 8;  // apart from each other, or every product would wait for the one before
    float total[SUMS] = {};
    int64_t k = 0;
    for (; k + SUMS <= count; k += SUMS)
        UNROLL for (int i = 0; i < SUMS; i++) total[i] += values[k + i] * input[offset[k + i]];
    for (; k < count; k++) total[0] += values[k] * input[offset[k]];
    return ((total[0] + total[1]) + (total[2] + total[3])) + ((total[4] + total[5]) + (total[6] + total[7]));
}

float whole(const float *values, int64_t count, const float *input) {
    constexpr int SUMS = 4;
    Vector total[SUMS] = {};
    int64_t k = 0;
    for (; k + SUMS * WIDTH <= count; k += SUMS * WIDTH)
        UNROLL for (int i = 0; i < SUMS; i++)
            total[i] += load<Vector>(values + k + i * WIDTH) * load<Vector>(input + k + i * WIDTH);
    float all = sum<Vector>((total[0] + total[1]) + (total[2] + total[3]));
    for (; k < count; k++) all += values[k] * input[k];
    return all;
}

// The end of a dot product, in a map of single pixels.
void put(const Pass &pass, int32_t row, float total) {
    const int64_t place = row * pass.step.to.plane;
    total += pass.bias(row) + (pass.other ? pass.other[place] : 0.f);
    pass.out[place] = clamp<float>(total, pass.range.low, pass.range.high);
}

}  // namespace

void sparse_convolution(const Step &step, const Memory &memory, const Share &share) {
    const Pass pass(step, memory);
    const int32_t rows = step.to.channels;
    const int32_t from = first_row(step.begin, rows, share.part, share.parts);
    const int32_t to = first_row(step.begin, rows, share.part + 1, share.parts);
    cut_evenly<SPARSE_TILE>(pass.length, [&](auto tile, int64_t at) { sparse_rows<decltype(tile)>(pass, from, to, at); });
    pass.clear_gaps(from, to);
}

void dense_convolution(const Step &step, const Memory &memory, const Share &share) {
    const Pass pass(step, memory);
    const int32_t rows = step.to.channels, blocks = (rows + ROWS - 1) / ROWS;
    const int32_t from = share.from(blocks) * ROWS, to = std::min<int32_t>(rows, share.to(blocks) * ROWS);
    cut_evenly<DENSE_TILE>(pass.length, [&](auto tile, int64_t at) {
        typedef decltype(tile) T;
        for (int32_t row = from; row < to;) {
            const bool together = row + ROWS <= to && row / step.per_group == (row + ROWS - 1) / step.per_group;
            if (together) dense_rows<T, ROWS>(pass, row, at);
            else dense_rows<T, 1>(pass, row, at);
            row += together ? ROWS : 1;
        }
    });
    pass.clear_gaps(from, to);
}

void sparse_dot(const Step &step, const Memory &memory, const Share &share) {
    const Pass pass(step, memory);
    const int32_t rows = step.to.channels, *begin = step.begin;
    const int32_t to = first_row(begin, rows, share.part + 1, share.parts);
    for (int32_t row = first_row(begin, rows, share.part, share.parts); row < to; row++) {
        const int32_t k = begin[row];
        put(pass, row, gathered(step.values + k, step.offset + k, begin[row + 1] - k, pass.in - row * step.row_step));
    }
}

void dense_dot(const Step &step, const Memory &memory, const Share &share) {
    const Pass pass(step, memory);
    for (int32_t row = share.from(step.to.channels); row < share.to(step.to.channels); row++) {
        const float *values = step.values + row * step.count, *in = pass.in + row / step.per_group * step.group_step;
        put(pass, row, step.offset ? gathered(values, step.offset, step.count, in) : whole(values, step.count, in));
    }
}

}  // namespace rewire
