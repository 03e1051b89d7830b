// Mean and variance of every channel, summed while an activation is written: batch norm then need not read it for them.
#pragma once
#include <cstring>

#include "simd.hpp"

namespace rewire {

// The sums of one thread. Values are centred on the first one of their channel: squares of uncentred values would cancel.
struct ChannelMoments {
    float *sums = nullptr;     // [channels][2][WIDTH] sums of d and of d * d, where d = value - centre
    float *centre = nullptr;   // [channels]
    int64_t *count = nullptr;  // [channels]

    // Bytes for one thread: whole cache lines, so that threads do not share any.
    static int64_t bytes(int32_t channels) {
        return (int64_t(channels) * (sizeof(float) * (2 * WIDTH + 1) + sizeof(int64_t)) + 63) / 64 * 64;
    }

    // `memory`: bytes(channels) for each thread, all zero; or null, and then nothing may be added.
    ChannelMoments(char *memory, int32_t channels, int thread) {
        if (!memory) return;
        char *own = memory + bytes(channels) * thread;
        count = reinterpret_cast<int64_t *>(own);
        sums = reinterpret_cast<float *>(count + channels);
        centre = sums + int64_t(channels) * 2 * WIDTH;
    }

    // Adds VECTORS vectors, except for the first `overlap` lanes, which were added before (batch_tile.hpp).
    template <class Vec, int VECTORS> inline void add(int32_t channel, const Vec *values, int overlap) {
        constexpr int LANES = lanes<Vec>;
        if constexpr (std::is_same_v<Vec, float>) {
            add_floats(channel, values, 1);
        } else if (overlap) {
            float last[LANES];
            store<Vec>(last, values[0]);
            add_floats(channel, last + overlap, LANES - overlap);
        } else {
            if (!count[channel]) centre[channel] = values[0][0];
            count[channel] += VECTORS * LANES;
            const Vec middle = broadcast<Vec>(centre[channel]);
            float *at = sums + int64_t(channel) * 2 * WIDTH;
            Vec first = load<Vec>(at), second = load<Vec>(at + WIDTH);
            UNROLL for (int v = 0; v < VECTORS; v++) {
                const Vec d = values[v] - middle;
                first += d;
                second += d * d;
            }
            store<Vec>(at, first);
            store<Vec>(at + WIDTH, second);
        }
    }

    void add_floats(int32_t channel, const float *values, int size) {
        if (!count[channel]) centre[channel] = values[0];
        count[channel] += size;
        float *at = sums + int64_t(channel) * 2 * WIDTH;
        for (int i = 0; i < size; i++) {
            const float d = values[i] - centre[channel];
            at[0] += d;
            at[WIDTH] += d * d;
        }
    }

    // The mean and the (biased) variance of every channel from the sums of all threads, merged two by two (Chan et al.).
    static void finish(char *memory, int32_t channels, int threads, float *mean, float *variance) {
        for (int32_t c = 0; c < channels; c++) {
            double count = 0, total_mean = 0, squares = 0;  // squares: sum of squared deviations from the mean
            for (int thread = 0; thread < threads; thread++) {
                const ChannelMoments m(memory, channels, thread);
                if (!m.count[c]) continue;
                double first = 0, second = 0;
                for (int i = 0; i < WIDTH; i++) {
                    first += m.sums[int64_t(c) * 2 * WIDTH + i];
                    second += m.sums[int64_t(c) * 2 * WIDTH + WIDTH + i];
                }
                const double n = double(m.count[c]), thread_mean = m.centre[c] + first / n, delta = thread_mean - total_mean;
                squares += second - first * first / n + delta * delta * count * n / (count + n);
                total_mean += delta * n / (count + n);
                count += n;
            }
            mean[c] = float(total_mean);
            variance[c] = float(std::max(squares / count, 0.0));
        }
    }
};

}  // namespace rewire
