// Runs a network on one sample, or on a few, in one call: the threads stay together from the first step to the last.
#include "sample_program.hpp"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "csr_build.hpp"
#include "entry_point.hpp"

namespace rewire {
namespace {

void run_step(const Step &step, const ProgramMemory &memory, const ThreadShare &share) {
    switch (step.kind) {
        case COPY: return copy(step, memory, share);
        case SPACE_TO_DEPTH: return space_to_depth(step, memory, share);
        case SPARSE_CONV: return sparse_conv(step, memory, share);
        case DENSE_CONV: return dense_conv(step, memory, share);
        case SPARSE_DOT: return sparse_dot(step, memory, share);
        case DENSE_DOT: return dense_dot(step, memory, share);
        case ADD: return add(step, memory, share);
        case MAX_POOL: return max_pool(step, memory, share);
        case AVG_POOL: return avg_pool(step, memory, share);
    }
}

}  // namespace
}  // namespace rewire

using namespace rewire;

// Row pointers and column indices of a sparse layer from its sorted positions: col_idx = tap_offset[tap] + channel_stride *
// input channel. `col_idx` may be null: the row pointers alone are filled then.
EXPORT void rewire_sample_build_csr(const LayerShape *shape, const void *positions, int is_int64, int64_t nnz,
                                    const int32_t *tap_offset, int64_t channel_stride, int32_t *row_ptr, int32_t *col_idx) {
    const int64_t row_size = int64_t(shape->in_channels) * shape->taps;
    const int32_t outputs_per_group = shape->out_channels / shape->groups;
    std::memset(row_ptr, 0, sizeof(int32_t) * (shape->out_channels + 1));
    for (int64_t k = 0; k < nnz; k++) {
        const int64_t position =
            is_int64 ? static_cast<const int64_t *>(positions)[k] : static_cast<const int32_t *>(positions)[k];
        const int64_t row = position / row_size, input = position % row_size / shape->taps, tap = position % shape->taps;
        row_ptr[row + 1]++;
        if (col_idx)
            col_idx[k] = int32_t(tap_offset[tap] + (row / outputs_per_group * shape->in_channels + input) * channel_stride);
    }
    for (int32_t row = 0; row < shape->out_channels; row++) row_ptr[row + 1] += row_ptr[row];
}
REGISTER(rewire_sample_build_csr);

// Runs the program on `samples` inputs, one behind the other. `workers` samples run at once, each on a thread of its own with
// its own part of the memory, as long as there are that many left; every step of the others is split over all threads. Neither
// changes a sum. `own`: `workers` times `own_size` floats, all zero at first.
EXPORT void rewire_sample_run(const Step *steps, int32_t count, int64_t samples, const float *input, int64_t input_size,
                              float *output, int64_t output_size, float *own, int64_t own_size, int workers, int threads) {
    const auto memory_of = [=](int64_t sample, int worker) {
        return ProgramMemory{input + sample * input_size, output + sample * output_size, own + worker * own_size};
    };
#pragma omp parallel num_threads(threads)
    {
        const ThreadShare share{omp_get_thread_num(), omp_get_num_threads()};
        const int together = std::min(workers, share.threads);
        const int64_t alone = together > 1 ? samples - samples % together : 0;  // samples that run on one thread each
        for (int64_t sample = share.thread; share.thread < together && sample < alone; sample += together)
            for (int32_t i = 0; i < count; i++) run_step(steps[i], memory_of(sample, share.thread), ThreadShare{0, 1});
#pragma omp barrier
        for (int64_t sample = alone; sample < samples; sample++)
            for (int32_t i = 0; i < count; i++) {
                run_step(steps[i], memory_of(sample, 0), share);
#pragma omp barrier
            }
    }
}
REGISTER(rewire_sample_run);
