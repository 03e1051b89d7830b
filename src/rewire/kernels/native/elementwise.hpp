// Loops over whole activations in HWCN layout [pixels][channels][batch], a vector at a time.
#pragma once
#include "batch_tile.hpp"
#include "simd.hpp"

namespace rewire {

// Calls work(channel, index, Vec{}) for every vector of the batch of every pixel and channel, and with Vec = float for what is
// left of the batch.
template <class Work> void for_each_vector(int64_t pixels, int32_t channels, int64_t batch, int threads, Work work) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t pixel = 0; pixel < pixels; pixel++)
            for (int32_t c = 0; c < channels; c++) {
                const int64_t at = (pixel * channels + c) * batch;
                int64_t n = 0;
                for (; n + WIDTH <= batch; n += WIDTH) work(c, at + n, Vector{});
                for (; n < batch; n++) work(c, at + n, float{});
            }
        store_fence();
    }
}

}  // namespace rewire
