// Mean and variance of every channel, taken while a map is written: batch norm then need not read it first.
#pragma once
#include <cstring>

#include "scratch.hpp"
#include "vector.hpp"

namespace rewire {

// One thread's sums. They are centred on the first value of each channel, or squares would cancel.
struct Moments {
    float *sums = nullptr;     // [channels][2][WIDTH]
    float *centre = nullptr;   // [channels]
    int64_t *count = nullptr;  // [channels]

    // A multiple of a cache line, so that every thread's part is aligned and none shares a line with another one's.
    static int64_t bytes(int32_t channels) {
        return (int64_t(channels) * (sizeof(float) * (2 * WIDTH + 1) + sizeof(int64_t)) + 63) / 64 * 64;
    }

    Moments(char *memory, int32_t channels, int thread) {
        if (!memory) return;
        char *mine = memory + bytes(channels) * thread;
        count = reinterpret_cast<int64_t *>(mine);
        sums = reinterpret_cast<float *>(count + channels);
        centre = sums + int64_t(channels) * 2 * WIDTH;
    }

    // `values`: COUNT vectors whose first `repeated` lanes were added before.
    template <class V, int COUNT> inline void add(int32_t channel, const V *values, int repeated) {
        constexpr int W = lanes<V>;
        if constexpr (std::is_same_v<V, float>) {
            add_lanes(channel, values, 1);
        } else if (repeated) {
            float last[W];
            store<V>(last, values[0]);
            add_lanes(channel, last + repeated, W - repeated);
        } else {
            if (!count[channel]) centre[channel] = values[0][0];
            count[channel] += COUNT * W;
            const V middle = spread<V>(centre[channel]);
            float *at = sums + int64_t(channel) * 2 * WIDTH;
            V first = load<V>(at), second = load<V>(at + WIDTH);
            UNROLL for (int z = 0; z < COUNT; z++) {
                const V d = values[z] - middle;
                first += d;
                second += d * d;
            }
            store<V>(at, first);
            store<V>(at + WIDTH, second);
        }
    }

    void add_lanes(int32_t channel, const float *values, int size) {
        if (!count[channel]) centre[channel] = values[0];
        count[channel] += size;
        float *at = sums + int64_t(channel) * 2 * WIDTH;
        for (int i = 0; i < size; i++) {
            const float d = values[i] - centre[channel];
            at[0] += d;
            at[WIDTH] += d * d;
        }
    }

    // The sums of all threads as one mean and one (biased) variance.
    static void finish(char *memory, int32_t channels, int threads, float *mean, float *variance) {
        for (int32_t c = 0; c < channels; c++) {
            double count = 0, middle = 0, spread = 0;
            for (int thread = 0; thread < threads; thread++) {
                const Moments m(memory, channels, thread);
                if (!m.count[c]) continue;
                double first = 0, second = 0;
                for (int i = 0; i < WIDTH; i++) {
                    first += m.sums[int64_t(c) * 2 * WIDTH + i];
                    second += m.sums[int64_t(c) * 2 * WIDTH + WIDTH + i];
                }
                const double n = double(m.count[c]), own = m.centre[c] + first / n, apart = own - middle;
                spread += second - first * first / n + apart * apart * count * n / (count + n);
                middle += apart * n / (count + n);
                count += n;
            }
            mean[c] = float(middle);
            variance[c] = float(std::max(spread / count, 0.0));
        }
    }
};

}  // namespace rewire
