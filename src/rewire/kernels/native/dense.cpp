// Layers of which a third or more exists. Skipping zeros costs more than it saves there: the weights are written out,
// and blocks of rows share what they load, as in a dense matrix product, but in the same layout as all other layers.
#include <omp.h>

#include <cstring>
#include <vector>

#include "gather.hpp"
#include "moments.hpp"
#include "scratch.hpp"
#include "tables.hpp"
#include "vector.hpp"

namespace rewire {
namespace {

constexpr int ROWS = 6;    // of a block; times two vectors, they fill the registers of AVX2
constexpr int OUTPUTS = 3;  // of a block of weight gradients, times four inputs
thread_local Scratch written, written_gradients, packed, moments_memory;

// One direction: what is read through tap `t` (in the gather's order) lies `reach[t]` channels from the base.
struct Side {
    const Gather &g;
    const int32_t *reach;
    int64_t wide() const { return int64_t(g.taps) * g.channels; }
    int64_t blocks() const { return (g.rows + ROWS - 1) / ROWS; }
};

struct Positions {
    const void *data;
    bool wide;
    const Layer &layer;
    int64_t nnz;

    // Calls work(k, output, input, tap).
    template <class Work> void each(int64_t from, int64_t to, Work work) const {
        const int64_t row = int64_t(layer.inputs) * layer.taps;
        for (int64_t k = from; k < to; k++) {
            const int64_t position = wide ? static_cast<const int64_t *>(data)[k] : static_cast<const int32_t *>(data)[k];
            const int64_t output = position / row;
            const uint32_t rest = uint32_t(position - output * row);
            work(k, int32_t(output), int32_t(rest / uint32_t(layer.taps)), int32_t(rest % uint32_t(layer.taps)));
        }
    }
};

// The weights as [block of rows][tap][channel][row of the block], with zeros where there is none.
const float *write_out(const Side &side, const Positions &positions, const float *values, bool transposed, const int32_t *place) {
    const int64_t size = side.blocks() * side.wide() * ROWS;
    float *weights = written.take<float>(size);
    std::memset(weights, 0, sizeof(float) * size);
    positions.each(0, positions.nnz, [&](int64_t k, int32_t output, int32_t input, int32_t tap) {
        const int32_t row = transposed ? input : output, channel = transposed ? output : input;
        const int64_t column = int64_t(place ? place[tap] : tap) * side.g.channels + channel;
        weights[((row / ROWS) * side.wide() + column) * ROWS + row % ROWS] = values[k];
    });
    return weights;
}

// What one pixel reads for one tile of the batch, tap after tap in one piece.
template <class T> void pack(const Side &side, const float *map, int32_t y, int32_t x, int64_t batch, int64_t at, float *to) {
    typedef typename T::V V;
    constexpr int Z = T::count, W = lanes<V>;
    const Gather &g = side.g;
    const float *base = map + source(g, y, x, batch) + at;
    inner_taps(g, y, x, [&](int32_t low, int32_t high) {
        for (int32_t tap = low; tap < high; tap++)
            for (int32_t c = 0; c < g.channels; c++) {
                const float *from = base + (side.reach[tap] + int64_t(c)) * batch;
                float *here = to + (int64_t(tap) * g.channels + c) * Z * W;
                UNROLL for (int z = 0; z < Z; z++) store<V>(here + z * W, load<V>(from + z * W));
            }
    });
}

// A block of rows: total[row][z] += sum over columns of weight * packed.
template <class T>
inline void block(const Side &side, const float *weights, const float *from, int32_t y, int32_t x,
                  typename T::V (&total)[ROWS][T::count]) {
    typedef typename T::V V;
    constexpr int Z = T::count, W = lanes<V>;
    inner_taps(side.g, y, x, [&](int32_t low, int32_t high) {
        for (int64_t k = int64_t(low) * side.g.channels, end = int64_t(high) * side.g.channels; k < end; k++) {
            V read[Z];
            UNROLL for (int z = 0; z < Z; z++) read[z] = load<V>(from + (k * Z + z) * W);
            UNROLL for (int r = 0; r < ROWS; r++) {
                const V weight = spread<V>(weights[k * ROWS + r]);
                UNROLL for (int z = 0; z < Z; z++) total[r][z] += weight * read[z];
            }
        }
    });
}

struct Result {
    float *to;
    const float *bias;
    Range range;
    bool clamped, streamed;
};

template <class T>
void tile(const Side &side, const float *weights, const float *map, const Result &result, Moments *moments, int32_t y,
          int32_t x, int64_t batch, int64_t at, int repeated) {
    typedef typename T::V V;
    constexpr int Z = T::count, W = lanes<V>;
    const Gather &g = side.g;
    float *from = packed.take<float>(side.wide() * Z * W);
    pack<T>(side, map, y, x, batch, at, from);
    for (int64_t b = 0; b < side.blocks(); b++) {
        V total[ROWS][Z];
        UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int z = 0; z < Z; z++) total[r][z] = V{};
        block<T>(side, weights + b * side.wide() * ROWS, from, y, x, total);
        for (int32_t r = 0; r < ROWS && b * ROWS + r < g.rows; r++) {
            const int32_t row = int32_t(b * ROWS + r);
            V out[Z];
            UNROLL for (int z = 0; z < Z; z++) {
                out[z] = total[r][z] + spread<V>(result.bias ? result.bias[row] : 0.f);
                if (result.clamped) out[z] = clamp<V>(out[z], spread<V>(result.range.low), spread<V>(result.range.high));
            }
            if (moments) moments->add<V, Z>(row, out, repeated);
            put<V, Z>(result.to + target(g, y, x, batch) + row * batch + at, out, repeated, result.streamed);
        }
    }
}

void gather_all(const Side &side, const float *weights, const float *map, const Result &result, char *memory, int64_t batch,
                int threads) {
    const Gather &g = side.g;
    const int32_t pixels = g.y.size * g.x.size;
#pragma omp parallel num_threads(threads)
    {
        Moments mine(memory, g.rows, omp_get_thread_num());
#pragma omp for schedule(static)
        for (int32_t pixel = 0; pixel < pixels; pixel++)
            cut<2>(batch, [&](auto t, int64_t at, int repeated) {
                tile<decltype(t)>(side, weights, map, result, memory ? &mine : nullptr, pixel / g.x.size, pixel % g.x.size,
                                  batch, at, repeated);
            });
        if (result.streamed) fence();
    }
}

// A vector that ends after `count` floats, with zeros behind.
inline Vector load_part(const float *from, int64_t count) {
    float part[WIDTH] = {};
    std::memcpy(part, from, sizeof(float) * size_t(count));
    return load<Vector>(part);
}

// to[o][k] += sum over the batch of grad[o] * input[k], for O outputs and K inputs.
template <int O, int K>
inline void outer(const float *grad, const float *const *input, int64_t batch, float *to, int64_t wide) {
    Vector total[O][K];
    UNROLL for (int o = 0; o < O; o++) UNROLL for (int k = 0; k < K; k++) total[o][k] = Vector{};
    int64_t n = 0;
    for (; n + WIDTH <= batch; n += WIDTH) {
        Vector g[O];
        UNROLL for (int o = 0; o < O; o++) g[o] = load<Vector>(grad + o * batch + n);
        UNROLL for (int k = 0; k < K; k++) {
            const Vector x = load<Vector>(input[k] + n);
            UNROLL for (int o = 0; o < O; o++) total[o][k] += g[o] * x;
        }
    }
    if (n < batch)
        for (int k = 0; k < K; k++) {
            const Vector x = load_part(input[k] + n, batch - n);
            for (int o = 0; o < O; o++) total[o][k] += x * load_part(grad + o * batch + n, batch - n);
        }
    UNROLL for (int o = 0; o < O; o++) {
        float *row = to + o * wide;
        if constexpr (K == 4) {
            store<Quad>(row, load<Quad>(row) + sums(total[o][0], total[o][1], total[o][2], total[o][3]));
        } else {
            UNROLL for (int k = 0; k < K; k++) row[k] += sum<Vector>(total[o][k]);
        }
    }
}

template <int O>
inline void outputs(const Side &side, const float *grad, const float *base, int32_t y, int32_t x, int64_t batch, float *to) {
    const Gather &g = side.g;
    inner_taps(g, y, x, [&](int32_t low, int32_t high) {
        const float *input[4];
        int waiting = 0;  // inputs of several taps share a block: the first layer has three channels
        for (int32_t tap = low; tap < high; tap++)
            for (int32_t c = 0; c < g.channels; c++) {
                input[waiting++] = base + (side.reach[tap] + int64_t(c)) * batch;
                if (waiting < 4) continue;
                outer<O, 4>(grad, input, batch, to + int64_t(tap) * g.channels + c - 3, side.wide());
                waiting = 0;
            }
        for (int i = 0; i < waiting; i++)
            outer<O, 1>(grad, input + i, batch, to + int64_t(high) * g.channels - waiting + i, side.wide());
    });
}

// The gradients of all weights, one dense array for each thread, then those that exist.
void weight_gradients(const Side &side, const Positions &positions, const float *input, const float *grad, float *found,
                      int64_t batch, int threads) {
    const Gather &g = side.g;
    const int64_t size = g.rows * side.wide();
    const int32_t pixels = g.y.size * g.x.size;
    float *all = written_gradients.take<float>(size * threads);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t k = 0; k < size * threads; k++) all[k] = 0.f;
        float *mine = all + size * omp_get_thread_num();
#pragma omp for schedule(static)
        for (int32_t pixel = 0; pixel < pixels; pixel++) {
            const int32_t y = pixel / g.x.size, x = pixel % g.x.size;
            const float *above = grad + target(g, y, x, batch), *base = input + source(g, y, x, batch);
            int32_t row = 0;
            for (; row + OUTPUTS <= g.rows; row += OUTPUTS)
                outputs<OUTPUTS>(side, above + row * batch, base, y, x, batch, mine + row * side.wide());
            for (; row < g.rows; row++) outputs<1>(side, above + row * batch, base, y, x, batch, mine + row * side.wide());
        }
#pragma omp for schedule(static)
        for (int part = 0; part < threads; part++)
            positions.each(positions.nnz * part / threads, positions.nnz * (part + 1) / threads,
                           [&](int64_t k, int32_t output, int32_t channel, int32_t tap) {
                               const int64_t at = output * side.wide() + int64_t(tap) * g.channels + channel;
                               float total = 0;
                               for (int thread = 0; thread < threads; thread++) total += all[at + thread * size];
                               found[k] = total;
                           });
    }
}

}  // namespace
}  // namespace rewire

using namespace rewire;

// As rewire_forward; `reach` is that of the forward pass.
EXPORT void rewire_dense_forward(const Layer *layer, const Gather *gather, const int32_t *reach, const void *positions,
                                 int wide, const float *input, const float *values, const float *bias, float *output,
                                 float *mean, float *variance, int64_t batch, int active, float limit, int threads) {
    const Gather &g = *gather;
    const Side side{g, reach};
    const float *weights = write_out(side, Positions{positions, wide != 0, *layer, g.nnz}, values, false, nullptr);
    const int64_t size = Moments::bytes(g.rows) * threads;
    char *memory = mean ? moments_memory.take<char>(size) : nullptr;
    if (memory) std::memset(memory, 0, size_t(size));
    const bool streamed = is_streamed(output, int64_t(g.y.size) * g.x.size * g.rows * batch, batch);
    gather_all(side, weights, input, Result{output, bias, Range(active, limit), active != 0, streamed}, memory, batch, threads);
    if (mean) Moments::finish(memory, g.rows, threads, mean, variance);
}

// As rewire_backward; `place` and `reach_back` are the order of taps in the backward pass and what they reach.
EXPORT void rewire_dense_backward(const Layer *layer, const Gather *forward, const Gather *backward, const int32_t *reach,
                                  const int32_t *place, const int32_t *reach_back, const void *positions, int wide,
                                  const float *input, const float *grad, const float *values, float *grad_input,
                                  float *grad_values, int64_t batch, int threads) {
    const Positions where{positions, wide != 0, *layer, forward->nnz};
    if (grad_input) {
        std::vector<int32_t> sorted(backward->taps);
        for (int32_t tap = 0; tap < backward->taps; tap++) sorted[place[tap]] = reach_back[tap];
        const Gather &g = *backward;
        const Side side{g, sorted.data()};
        const bool streamed = is_streamed(grad_input, int64_t(g.y.size) * g.x.size * g.rows * batch, batch);
        const float *weights = write_out(side, where, values, true, place);
        gather_all(side, weights, grad, Result{grad_input, nullptr, Range(0, 0.f), false, streamed}, nullptr, batch, threads);
    }
    if (grad_values) weight_gradients(Side{*forward, reach}, where, input, grad, grad_values, batch, threads);
}
