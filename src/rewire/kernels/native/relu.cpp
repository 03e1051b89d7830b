// ReLU alone, and the sum at the end of a residual block with the ReLU behind it. Elementwise: any dense memory layout.
#include "batch_kernels.hpp"
#include "elementwise.hpp"

using namespace rewire;

namespace {

// Calls for_each_vector on `size` floats in chunks; the last chunk reaches beyond the end, so `work` checks its index.
template <class Work> void for_each_chunk(int64_t size, int threads, Work work) {
    const int64_t chunks = (size + ELEMENTWISE_CHUNK - 1) / ELEMENTWISE_CHUNK;
    for_each_vector(chunks, 1, ELEMENTWISE_CHUNK, size < ELEMENTWISE_CHUNK ? 1 : threads, work);
}

}  // namespace

// y = x + other, or x alone if `other` is null, then clamped to [0, limit] if `relu`.
EXPORT void rewire_add_relu(const float *x, const float *other, int64_t size, int relu, float limit, float *y, int threads) {
    const bool nontemporal = use_nontemporal(y, size, size);
    const ClampRange range(relu, limit);
    for_each_chunk(size, threads, [&](int32_t, int64_t at, auto kind) {
        typedef decltype(kind) Vec;
        if (at + lanes<Vec> > size) {
            for (; at < size; at++) y[at] = clamp<float>(other ? x[at] + other[at] : x[at], range.low, range.high);
            return;
        }
        const Vec sum = other ? load<Vec>(x + at) + load<Vec>(other + at) : load<Vec>(x + at);
        const Vec result = clamp<Vec>(sum, broadcast<Vec>(range.low), broadcast<Vec>(range.high));
        store_tile<Vec, 1>(y + at, &result, 0, nontemporal);
    });
}
REGISTER(rewire_add_relu);

// The gradient of the input of a ReLU from its output `y`: zero where y <= 0 or y >= limit.
EXPORT void rewire_relu_backward(const float *y, const float *grad_output, int64_t size, float limit, float *grad_input,
                                 int threads) {
    const bool nontemporal = use_nontemporal(grad_input, size, size);
    const ClampRange range(1, limit);
    for_each_chunk(size, threads, [&](int32_t, int64_t at, auto kind) {
        typedef decltype(kind) Vec;
        if (at + lanes<Vec> > size) {
            for (; at < size; at++) grad_input[at] = y[at] <= range.low || y[at] >= range.high ? 0.f : grad_output[at];
            return;
        }
        const Vec here = load<Vec>(y + at);
        Vec grad = load<Vec>(grad_output + at);
        grad = here <= broadcast<Vec>(range.low) ? Vec{} : grad;
        grad = here >= broadcast<Vec>(range.high) ? Vec{} : grad;
        store_tile<Vec, 1>(grad_input + at, &grad, 0, nontemporal);
    });
}
REGISTER(rewire_relu_backward);
