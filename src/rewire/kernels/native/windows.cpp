// Convolutions through windows: the sums of direct.cpp, for several pixels at once.
#include "windows.hpp"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "moments.hpp"
#include "scratch.hpp"

namespace rewire {
namespace {

constexpr int64_t UNFINISHED = 128 << 10;  // bytes of unfinished sums that may wait for the next block of channels
constexpr int32_t WORTH = 32;              // non-zeros of a row from which on a kernel of one tap is worth a copy
thread_local Scratch translated, copies, unfinished;

std::vector<Group> grouped(const Axis &axis, int32_t most) {
    const int32_t phases = 1 + *std::max_element(axis.phase, axis.phase + axis.size);
    std::vector<Group> found;
    for (int32_t phase = 0; phase < phases; phase++) {
        const int32_t first = int32_t(std::find(axis.phase, axis.phase + axis.size, phase) - axis.phase);
        for (int32_t at = first; at < axis.size; at += most * phases)
            found.push_back({at, std::min(most, (axis.size - at + phases - 1) / phases), phases});
    }
    return found;
}

// How far apart two pixels of a group read.
int32_t apart(const Axis &axis, const Group &group) {
    return group.count > 1 ? axis.base[group.at(1)] - axis.base[group.first] : 0;
}

// What the largest group reads along an axis, from the least that a tap reaches.
int32_t reached(const Axis &axis, const std::vector<Group> &groups, const int32_t *taps, int32_t count) {
    int32_t steps = 0;
    for (const Group &group : groups) steps = std::max(steps, apart(axis, group) * (group.count - 1));
    return *std::max_element(taps, taps + count) - *std::min_element(taps, taps + count) + 1 + steps;
}

// Where the non-zeros of a layer read in a copy.
struct Offsets {
    const int32_t *offset;
    bool own;  // they are those of the map: a kernel of one tap has nothing to translate

    Offsets(const Windows &w, int threads) : offset(w.g.offset), own(w.g.taps == 1) {
        if (own) return;
        const Gather &g = w.g;
        int32_t *to = translated.take<int32_t>(g.nnz);
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int32_t row = 0; row < g.rows; row++)
            for (int32_t block = 0; block < g.blocks; block++) {
                const int32_t *begin = g.cell(row, block), shift = (g.shift ? g.shift[row] : 0) - w.channel(block);
                for (int32_t tap = 0; tap < g.taps; tap++) {
                    const int32_t in_map = (g.tap_y[tap] * g.width + g.tap_x[tap]) * g.channels;
                    const int32_t in_copy = ((g.tap_y[tap] - w.top) * w.broad + g.tap_x[tap] - w.left) * w.deep;
                    for (int32_t k = begin[tap]; k < begin[tap + 1]; k++) to[k] = g.offset[k] + shift - in_map + in_copy;
                }
            }
        offset = to;
    }

    // What has to be added for a row and block.
    int64_t start(const Windows &w, int32_t row, int32_t block) const {
        return own ? (w.g.shift ? w.g.shift[row] : 0) - w.channel(block) : 0;
    }
};

// One group of pixels and one piece of the batch.
struct Place {
    const Group &y, &x;
    int64_t at;
};

// Copies what the pixels of a place read of one block.
void copy(const Windows &w, const float *map, const Place &place, int32_t block, int64_t batch, float *to) {
    const Gather &g = w.g;
    const int32_t first = w.channel(block), count = w.channel(block + 1) - first;
    const int32_t above = g.y.base[place.y.first] + w.top, before = g.x.base[place.x.first] + w.left;
    const bool more = place.at + 2 * DEPTH <= batch;
    for (int32_t i = std::max(0, -above); i < std::min(w.tall, g.height - above); i++)
        for (int32_t j = 0; j < w.broad; j++) {
            float *pixel = to + i * w.line() + j * w.column();
            if (before + j < 0 || before + j >= g.width) {
                std::memset(pixel, 0, sizeof(float) * size_t(count * DEPTH));
                continue;
            }
            const float *from = map + ((int64_t(above + i) * g.width + before + j) * g.channels + first) * batch + place.at;
            for (int32_t c = 0; c < count; c++, from += batch, pixel += DEPTH) {
                UNROLL for (int z = 0; z < DEEP; z++) store<Vector>(pixel + z * WIDTH, load<Vector>(from + z * WIDTH));
                if (more) __builtin_prefetch(from + DEPTH, 0, 2);
            }
        }
}

// The taps that a line of pixels meets. Columns outside of the map are zeros in the copy, lines are left out.
struct Span {
    int32_t low, high;
    Span(const Gather &g, int32_t y, int32_t x) {
        const int32_t wide = g.across[g.x.phase[x]];
        const int32_t first = g.first_tap[g.y.phase[y] * g.phases_x + g.x.phase[x]];
        low = first + g.y.low[y] * wide, high = first + g.y.high[y] * wide;
    }
};

// What the inner loops need, and no more: they are compiled apart, or the compiler runs out of registers.
struct Job {
    const Windows &w;
    const Offsets &offsets;
    const Place &place;
    const float *copy;
    float *waiting;  // [lines][rows][pixels][depth] unfinished sums
    int32_t block, from, to;
    int64_t beside = apart(w.g.x, place.x) * w.column(), below = apart(w.g.y, place.y) * w.line();  // in the copy

    bool is_last() const { return block == w.g.blocks - 1; }
    float *kept(int32_t line, int32_t row) const { return waiting + (int64_t(line) * w.g.rows + row) * w.pixels * DEPTH; }
    const float *read(int32_t line, int32_t row) const { return copy + line * below + offsets.start(w, row, block) * DEPTH; }
};

template <int P> __attribute__((noinline)) void forward_block(const Outward &f, const Job &job, Moments *moments) {
    constexpr int Z = DEEP;
    const Gather &g = f.g;
    const Place &place = job.place;
    const float *values = f.values;
    const int32_t *offsets = job.offsets.offset;
    for (int32_t i = 0; i < place.y.count; i++) {
        const int32_t y = place.y.at(i);
        const Span span(g, y, place.x.first);
        for (int32_t row = job.from; row < job.to; row++) {
            Vector total[P][Z];
            float *kept = job.kept(i, row);
            const Vector first = spread<Vector>(f.bias ? f.bias[row] : 0.f);
            UNROLL for (int n = 0; n < P * Z; n++) total[n / Z][n % Z] = job.block ? load<Vector>(kept + n * WIDTH) : first;
            const float *pixel[P];
            UNROLL for (int p = 0; p < P; p++) pixel[p] = job.read(i, row) + p * job.beside;
            const int32_t *begin = g.cell(row, job.block), *offset = offsets + begin[span.low];
            for (const float *value = values + begin[span.low], *end = values + begin[span.high]; value < end; value++) {
                const int64_t here = int64_t(*offset++) * DEPTH;
                const Vector v = spread<Vector>(*value);
                UNROLL for (int p = 0; p < P; p++)
                    UNROLL for (int z = 0; z < Z; z++) total[p][z] += v * load<Vector>(pixel[p] + here + z * WIDTH);
            }
            if (!job.is_last()) {
                UNROLL for (int n = 0; n < P * Z; n++) store<Vector>(kept + n * WIDTH, total[n / Z][n % Z]);
                continue;
            }
            if (f.clamped) {
                const Vector low = spread<Vector>(f.range.low), high = spread<Vector>(f.range.high);
                UNROLL for (int n = 0; n < P * Z; n++) total[n / Z][n % Z] = clamp<Vector>(total[n / Z][n % Z], low, high);
            }
            for (int32_t p = 0; p < P && p < place.x.count; p++) {
                if (moments) moments->add<Vector, Z>(row, total[p], 0);
                float *to = f.output + target(g, y, place.x.at(p), f.batch) + row * f.batch + place.at;
                put<Vector, Z>(to, total[p], 0, f.streamed);
            }
        }
    }
}

// As in direct.cpp, each gradient that is loaded serves twice.
template <int P, bool INPUT, bool VALUES>
__attribute__((noinline)) void backward_block(const Inward &b, const Job &job, float *grad_values) {
    constexpr int Z = DEEP;
    const Gather &g = b.g;
    const Place &place = job.place;
    const int64_t beside = job.beside;
    const float *values = b.values;
    const int32_t *offsets = job.offsets.offset;
    for (int32_t i = 0; i < place.y.count; i++) {
        const int32_t y = place.y.at(i);
        const Span span(g, y, place.x.first);
        const int64_t own = target(g, y, place.x.first, b.batch) + place.at;
        const int64_t next = int64_t(place.x.step) * g.rows * b.batch;  // from a pixel of the group to the one beside it
        for (int32_t row = job.from; row < job.to; row++) {
            Vector total[P][Z], input[P][Z];
            float *kept = job.kept(i, row);
            const float *under = b.input + own + row * b.batch;
            UNROLL for (int p = 0; p < P; p++) UNROLL for (int z = 0; z < Z; z++) {
                if constexpr (INPUT) total[p][z] = job.block ? load<Vector>(kept + (p * Z + z) * WIDTH) : Vector{};
                if constexpr (VALUES) input[p][z] = p < place.x.count ? load<Vector>(under + p * next + z * WIDTH) : Vector{};
            }
            const float *copy = job.read(i, row);
            auto one = [&](int32_t k) {
                const float *read = copy + int64_t(offsets[k]) * DEPTH;
                const Vector value = INPUT ? spread<Vector>(values[k]) : Vector{};
                Vector product{};
                UNROLL for (int p = 0; p < P; p++) UNROLL for (int z = 0; z < Z; z++) {
                    const Vector now = load<Vector>(read + p * beside + z * WIDTH);
                    if constexpr (INPUT) total[p][z] += value * now;
                    if constexpr (VALUES) product += now * input[p][z];
                }
                return product;
            };
            const int32_t *begin = g.cell(row, job.block);
            sum_products<VALUES, Vector>(begin[span.low], begin[span.high], grad_values, one);
            if constexpr (!INPUT) continue;
            if (!job.is_last()) {
                UNROLL for (int n = 0; n < P * Z; n++) store<Vector>(kept + n * WIDTH, total[n / Z][n % Z]);
                continue;
            }
            for (int32_t p = 0; p < P && p < place.x.count; p++)
                put<Vector, Z>(b.grad_input + own + p * next + row * b.batch, total[p], 0, b.streamed);
        }
    }
}

// Copies window after window and calls work(job). To be called by every thread of a team.
template <class Work>
void through(const Windows &w, const Offsets &offsets, const float *map, int64_t batch, const Division &division, Work work) {
    float *to = copies.take<float>(w.size());
    const int64_t sums = int64_t(w.lines) * w.g.rows * w.pixels * DEPTH;
    float *waiting = unfinished.take<float>(w.g.blocks > 1 ? sums : 0);
    const int32_t columns = int32_t(w.across.size());
    division.each(w.g.rows, [&](int32_t group, int32_t from, int32_t until) {
        for (int64_t at = 0; at < batch; at += DEPTH)
            for (int32_t block = 0; block < w.g.blocks; block++) {
                const Place place{w.down[group / columns], w.across[group % columns], at};
                copy(w, map, place, block, batch, to);
                work(Job{w, offsets, place, to, waiting, block, from, until});
            }
    });
}

template <bool INPUT, bool VALUES> void backward(const Inward &b, const Windows &w, const Division &division) {
    const Offsets offsets(w, division.threads);
#pragma omp parallel num_threads(division.threads)
    {
        float *mine = b.buffer(omp_get_thread_num() % division.buffers());
        through(w, offsets, b.grad, b.batch, division,
                [&](const Job &job) { backward_block<BACKWARD_TILE / DEEP, INPUT, VALUES>(b, job, mine); });
        if (b.streamed) fence();
    }
}

}  // namespace

Windows::Windows(const Gather &gather, int32_t vectors) : g(gather), pixels(vectors / DEEP) {
    const int64_t waiting = int64_t(g.rows) * pixels * DEPTH * sizeof(float);
    down = grouped(g.y, std::clamp(int32_t(UNFINISHED / waiting), 1, 8)), across = grouped(g.x, pixels);
    lines = 0;
    for (const Group &group : down) lines = std::max(lines, group.count);
    top = *std::min_element(g.tap_y, g.tap_y + g.taps), left = *std::min_element(g.tap_x, g.tap_x + g.taps);
    tall = reached(g.y, down, g.tap_y, g.taps), broad = reached(g.x, across, g.tap_x, g.taps);
    deep = 0;
    for (int32_t block = 0; block < g.blocks; block++) deep = std::max(deep, channel(block + 1) - channel(block));
}

int32_t Windows::channel(int32_t block) const { return int32_t((int64_t(block) * g.channels + g.blocks - 1) / g.blocks); }

bool fits_windows(const Gather &g, int64_t batch, int32_t vectors) {
    return batch % DEPTH == 0 && g.x.size >= vectors / DEEP && (g.taps > 1 || g.nnz >= WORTH * int64_t(g.rows));
}

void windows_forward(const Outward &f, const Windows &w, const Division &division) {
    const Offsets offsets(w, division.threads);
#pragma omp parallel num_threads(division.threads)
    {
        Moments mine(f.moments, f.g.rows, omp_get_thread_num());
        through(w, offsets, f.input, f.batch, division,
                [&](const Job &job) { forward_block<FORWARD_TILE / DEEP>(f, job, f.moments ? &mine : nullptr); });
        if (f.streamed) fence();
    }
}

void windows_backward(const Inward &b, const Windows &w, const Division &division) {
    wanted(b, [&](auto input, auto values) { backward<input.value, values.value>(b, w, division); });
}

}  // namespace rewire
