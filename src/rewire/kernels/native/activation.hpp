// Activation functions behind a token-major linear layer, with their derivatives: ReLU, GELU and SiLU on whole vectors.
#pragma once
#include <cstring>

#include "simd.hpp"

namespace rewire {

// What follows a layer. rewire/kernels/batch/activation.py has the same numbers.
enum ActivationKind : int32_t { IDENTITY = 0, RELU = 1, GELU = 2, GELU_TANH = 3, SILU = 4 };

typedef uint32_t BitVector __attribute__((vector_size(4 * WIDTH)));

// e^x to about one unit in the last place: 2^n times a polynomial of the rest. Results below the smallest normal float are
// that float. NaN passes through.
inline Vector exponential(Vector x) {
    x = clamp<Vector>(x, broadcast<Vector>(-87.f), broadcast<Vector>(88.f));
    const Vector shift = broadcast<Vector>(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer in the lowest bits
    const Vector shifted = x * 1.44269504f + shift, n = shifted - shift;
    const Vector r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Vector p = r * 1.9875691e-4f + 1.3981999e-3f;
    p = p * r + 8.3334519e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 5.0000001e-1f;
    p = p * r * r + r + 1.f;
    return (Vector)((BitVector)p + ((BitVector)shifted << 23));
}

// A value of the activation function and its derivative at the same place.
struct ValueAndSlope {
    Vector value, slope;
};

// x * Phi(x). The upper tail of the normal distribution is e^(-x^2 / 2) times a polynomial (Abramowitz and Stegun 7.1.26):
// absolute error of Phi 1e-7, and no cancellation for negative x.
inline ValueAndSlope gelu(Vector x) {
    const Vector magnitude = x < 0.f ? -x : x, gauss = exponential(x * x * -0.5f);
    const Vector t = 1.f / (1.f + magnitude * (0.3275911f * 0.70710678f));
    Vector p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const Vector tail = p * t * gauss * 0.5f, phi = x < 0.f ? tail : 1.f - tail;
    return {x * phi, phi + x * gauss * 0.39894228f};
}

// The logistic function s of x, and 1 - s without cancellation.
struct Sigmoid {
    Vector value, rest;
    explicit Sigmoid(Vector x) {
        const Vector e = exponential(-x);
        value = 1.f / (1.f + e);
        rest = e * value;
    }
};

// x * s(2 u) with u = sqrt(2 / pi) * (x + 0.044715 x^3), which is x * (1 + tanh(u)) / 2.
inline ValueAndSlope gelu_tanh(Vector x) {
    const Vector square = x * x;
    const Sigmoid s(x * (1.59576912f + 0.07135482f * square));
    return {x * s.value, s.value + x * s.value * s.rest * (1.59576912f + 0.21406445f * square)};
}

inline ValueAndSlope silu(Vector x) {
    const Sigmoid s(x);
    return {x * s.value, s.value + x * s.value * s.rest};
}

// `limit`: of a ReLU. The slope of a ReLU may be taken from its output as well as from its input.
template <int KIND> inline ValueAndSlope activate(Vector x, float limit) {
    if constexpr (KIND == RELU) {
        const Vector low{}, high = broadcast<Vector>(limit);
        const Vector slope = x <= low ? low : (x >= high ? low : broadcast<Vector>(1.f));
        return {clamp<Vector>(x, low, high), slope};
    } else if constexpr (KIND == GELU) {
        return gelu(x);
    } else if constexpr (KIND == GELU_TANH) {
        return gelu_tanh(x);
    } else if constexpr (KIND == SILU) {
        return silu(x);
    } else {
        return {x, broadcast<Vector>(1.f)};
    }
}

// Calls work(KIND) with the kind as a compile-time constant.
template <class Work> inline void dispatch_activation(int32_t kind, Work work) {
    switch (kind) {
        case RELU: return work(std::integral_constant<int, RELU>{});
        case GELU: return work(std::integral_constant<int, GELU>{});
        case GELU_TANH: return work(std::integral_constant<int, GELU_TANH>{});
        case SILU: return work(std::integral_constant<int, SILU>{});
        default: return work(std::integral_constant<int, IDENTITY>{});
    }
}

}  // namespace rewire
