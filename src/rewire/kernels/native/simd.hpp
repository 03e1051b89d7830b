// SIMD vectors of the instruction set that this file is compiled for.
//
// `Vector` is one full register; the templates take `Vector`, `Quad` (four floats) or plain `float`, so that the end of a
// batch can be computed by the same code one float at a time. A new instruction set needs its WIDTH and its shuffles here.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define UNROLL _Pragma("GCC unroll 16")

namespace rewire {

// Floats in a register.
#if defined(__AVX512F__)
constexpr int WIDTH = 16;
#elif defined(__AVX__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif

typedef float Vector __attribute__((vector_size(4 * WIDTH)));
typedef float Quad __attribute__((vector_size(16)));

template <class Vec> constexpr int lanes = sizeof(Vec) / sizeof(float);

// A row of the batch starts at any float: loads and stores must not assume alignment.
template <class Vec> inline Vec load(const float *from) {
    if constexpr (std::is_same_v<Vec, float>) {
        return *from;
    } else {
        typedef float Unaligned __attribute__((vector_size(sizeof(Vec)), aligned(4), may_alias));
        return (Vec) * reinterpret_cast<const Unaligned *>(from);
    }
}

template <class Vec> inline void store(float *to, Vec value) {
    if constexpr (std::is_same_v<Vec, float>) {
        *to = value;
    } else {
        typedef float Unaligned __attribute__((vector_size(sizeof(Vec)), aligned(4), may_alias));
        *reinterpret_cast<Unaligned *>(to) = (Unaligned)value;
    }
}

// Writes past the caches, so that a large output does not evict what is still needed. `to` must be aligned to a vector.
template <class Vec> inline void store_nontemporal(float *to, Vec value) {
    if constexpr (std::is_same_v<Vec, Vector>) {
#if defined(__AVX512F__)
        _mm512_stream_ps(to, (__m512)value);
        return;
#elif defined(__AVX__)
        _mm256_stream_ps(to, (__m256)value);
        return;
#elif defined(__SSE2__)
        _mm_stream_ps(to, (__m128)value);
        return;
#endif
    }
    store<Vec>(to, value);
}

// Non-temporal stores are visible to other threads only after this.
inline void store_fence() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

// Prefetches `count` floats into L2, one cache line (16 floats) at a time.
inline void prefetch(const float *from, int64_t count) {
    for (int64_t at = 0; at < count; at += 16) __builtin_prefetch(from + at, 0, 2);
}

// All lanes equal to `value`. Subtracting +0 is the identity for every float, -0 included; the compiler drops it, whereas
// it would have to carry out `0 + value`, which turns -0 into +0.
template <class Vec> inline Vec broadcast(float value) { return value - Vec{}; }

// Limits to [low, high]; NaN passes through.
template <class Vec> inline Vec clamp(Vec value, Vec low, Vec high) {
    value = low > value ? low : value;
    return high < value ? high : value;
}

// What follows a layer: nothing (relu = 0), ReLU (limit = infinity) or ReLU6 (limit = 6).
struct ClampRange {
    float low, high;
    ClampRange(int relu, float limit)
        : low(relu ? 0.f : -std::numeric_limits<float>::infinity()),
          high(relu ? limit : std::numeric_limits<float>::infinity()) {}
};

// Adds the quarters (AVX-512) or halves (AVX) of a vector.
inline Quad reduce_to_quad(Vector v) {
#if defined(__AVX512F__)
    return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7) +
           (__builtin_shufflevector(v, v, 8, 9, 10, 11) + __builtin_shufflevector(v, v, 12, 13, 14, 15));
#elif defined(__AVX__)
    return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
#else
    return v;
#endif
}

// The even (or odd) lanes of two vectors, one after the other.
inline Quad even_lanes(Quad a, Quad b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6); }
inline Quad odd_lanes(Quad a, Quad b) { return __builtin_shufflevector(a, b, 1, 3, 5, 7); }
#if defined(__AVX512F__)
inline Vector even_lanes(Vector a, Vector b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
inline Vector odd_lanes(Vector a, Vector b) {
    return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
#elif defined(__AVX__)
inline Vector even_lanes(Vector a, Vector b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14); }
inline Vector odd_lanes(Vector a, Vector b) { return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15); }
#endif

// The horizontal sums of four vectors as one Quad: transposing by halves costs a third of four separate sums.
inline Quad horizontal_add(Vector a, Vector b, Vector c, Vector d) {
    Quad p = reduce_to_quad(a), q = reduce_to_quad(b), r = reduce_to_quad(c), s = reduce_to_quad(d);
    Quad pq = __builtin_shufflevector(p, q, 0, 4, 1, 5) + __builtin_shufflevector(p, q, 2, 6, 3, 7);
    Quad rs = __builtin_shufflevector(r, s, 0, 4, 1, 5) + __builtin_shufflevector(r, s, 2, 6, 3, 7);
    return __builtin_shufflevector(pq, rs, 0, 1, 4, 5) + __builtin_shufflevector(pq, rs, 2, 3, 6, 7);
}

// The sum of all lanes.
template <class Vec> inline float horizontal_add(Vec v) {
    if constexpr (std::is_same_v<Vec, float>) {
        return v;
    } else {
        Quad q = reduce_to_quad(v);
        return (q[0] + q[1]) + (q[2] + q[3]);
    }
}

}  // namespace rewire
