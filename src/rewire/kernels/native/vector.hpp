// Vectors of the instruction set that this file is compiled for, and how a batch is cut into tiles of them.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))
#define UNROLL _Pragma("GCC unroll 16")

namespace rewire {

#if defined(__AVX512F__)
constexpr int WIDTH = 16;       // floats in a register
constexpr int BACKWARD_TILE = 8;  // registers that the backward pass has for each of its two operands
#elif defined(__AVX__)
constexpr int WIDTH = 8;
constexpr int BACKWARD_TILE = 4;
#else
constexpr int WIDTH = 4;
constexpr int BACKWARD_TILE = 4;
#endif
constexpr int FORWARD_TILE = 8;

typedef float Vector __attribute__((vector_size(4 * WIDTH)));
typedef float Quad __attribute__((vector_size(16)));

template <class V> constexpr int lanes = sizeof(V) / sizeof(float);

// Rows of a batch start at any float: the loads must not assume alignment.
template <class V> inline V load(const float *from) {
    if constexpr (std::is_same_v<V, float>) {
        return *from;
    } else {
        typedef float Loose __attribute__((vector_size(sizeof(V)), aligned(4), may_alias));
        return (V) * reinterpret_cast<const Loose *>(from);
    }
}

template <class V> inline void store(float *to, V value) {
    if constexpr (std::is_same_v<V, float>) {
        *to = value;
    } else {
        typedef float Loose __attribute__((vector_size(sizeof(V)), aligned(4), may_alias));
        *reinterpret_cast<Loose *>(to) = (Loose)value;
    }
}

// Past the caches, so that a large map does not push out what is still needed. `to` must be aligned to a vector.
template <class V> inline void stream(float *to, V value) {
    if constexpr (std::is_same_v<V, Vector>) {
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
    store<V>(to, value);
}

// Streamed stores are seen by other threads only after this.
inline void fence() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

constexpr int64_t STREAMED = 1 << 20;  // floats of a map from which on it is streamed: 4 MB

// Whether a map is written past the caches: only a large one whose every vector is aligned.
inline bool is_streamed(const float *to, int64_t size, int64_t batch) {
    return size >= STREAMED && batch % WIDTH == 0 && reinterpret_cast<uintptr_t>(to) % sizeof(Vector) == 0;
}

// Floats from `from` on, into the second cache.
inline void fetch(const float *from, int64_t count) {
    for (int64_t at = 0; at < count; at += 16) __builtin_prefetch(from + at, 0, 2);
}

// Minus zero, for `0 + value` would not be the same as -0 and so would cost an addition each time.
template <class V> inline V spread(float value) { return value - V{}; }

// Between low and high; what is no number stays none.
template <class V> inline V clamp(V value, V low, V high) {
    value = low > value ? low : value;
    return high < value ? high : value;
}

// What follows a layer: nothing, ReLU or ReLU6.
struct Range {
    float low, high;
    Range(int active, float limit)
        : low(active ? 0.f : -std::numeric_limits<float>::infinity()),
          high(active ? limit : std::numeric_limits<float>::infinity()) {}
};

inline Quad fold(Vector v) {
#if defined(__AVX512F__)
    return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7) +
           (__builtin_shufflevector(v, v, 8, 9, 10, 11) + __builtin_shufflevector(v, v, 12, 13, 14, 15));
#elif defined(__AVX__)
    return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
#else
    return v;
#endif
}

// Every second float of two vectors, from the first or from the second on.
inline Quad evens(Quad a, Quad b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6); }
inline Quad odds(Quad a, Quad b) { return __builtin_shufflevector(a, b, 1, 3, 5, 7); }
#if defined(__AVX512F__)
inline Vector evens(Vector a, Vector b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
inline Vector odds(Vector a, Vector b) {
    return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
#elif defined(__AVX__)
inline Vector evens(Vector a, Vector b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14); }
inline Vector odds(Vector a, Vector b) { return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15); }
#endif

// The sums of four vectors as one: a transposition by halves costs a third of four separate sums.
inline Quad sums(Vector a, Vector b, Vector c, Vector d) {
    Quad p = fold(a), q = fold(b), r = fold(c), s = fold(d);
    Quad pq = __builtin_shufflevector(p, q, 0, 4, 1, 5) + __builtin_shufflevector(p, q, 2, 6, 3, 7);
    Quad rs = __builtin_shufflevector(r, s, 0, 4, 1, 5) + __builtin_shufflevector(r, s, 2, 6, 3, 7);
    return __builtin_shufflevector(pq, rs, 0, 1, 4, 5) + __builtin_shufflevector(pq, rs, 2, 3, 6, 7);
}

template <class V> inline float sum(V v) {
    if constexpr (std::is_same_v<V, float>) {
        return v;
    } else {
        Quad q = fold(v);
        return (q[0] + q[1]) + (q[2] + q[3]);
    }
}

// Writes COUNT vectors, all but the first `repeated` lanes: what another tile has written there stays.
template <class V, int COUNT> inline void put(float *to, const V *values, int repeated, bool streamed) {
    constexpr int W = lanes<V>;
    if (repeated) {
        float last[W];
        store<V>(last, values[0]);
        for (int lane = repeated; lane < W; lane++) to[lane] = last[lane];
    } else if (streamed) {
        UNROLL for (int z = 0; z < COUNT; z++) stream<V>(to + z * W, values[z]);
    } else {
        UNROLL for (int z = 0; z < COUNT; z++) store<V>(to + z * W, values[z]);
    }
}

// One piece of a batch: COUNT vectors of type V.
template <class V_, int COUNT> struct Tile {
    typedef V_ V;
    static constexpr int count = COUNT;
};

// Cuts a batch of `size` into tiles of at most MOST vectors and calls work(tile, begin, repeated) for each.
//
// What is left below a full vector is covered by moving the last one back until it ends with the batch: its first
// `repeated` lanes were done by another tile and must be left alone. A batch smaller than a vector is done one by one.
template <int MOST, class Work> inline void cut(int64_t size, Work work) {
    int64_t at = 0;
    while (at + MOST * WIDTH <= size) work(Tile<Vector, MOST>{}, at, 0), at += MOST * WIDTH;
    if constexpr (MOST > 4) {
        if (at + 4 * WIDTH <= size) work(Tile<Vector, 4>{}, at, 0), at += 4 * WIDTH;
    }
    if (at + 2 * WIDTH <= size) work(Tile<Vector, 2>{}, at, 0), at += 2 * WIDTH;
    if (at + WIDTH <= size) work(Tile<Vector, 1>{}, at, 0), at += WIDTH;
    if (at == size) return;
    if (size >= WIDTH) return work(Tile<Vector, 1>{}, size - WIDTH, int(WIDTH - (size - at)));
    for (; at < size; at++) work(Tile<float, 1>{}, at, 0);
}

}  // namespace rewire
