// Token-major activations: [tokens][features], as torch has them in transformers. A tile of TOKENS tokens is transposed into
// scratch that stays in L2, [features][TOKENS], where a weight multiplies one contiguous vector of tokens.
//
// Features go in groups of FEATURES, one cache line of a token. Reading and writing a group is where bfloat16 is converted,
// activation functions are applied and missing tokens are filled up with zeros, all in the order of the caller's memory.
#pragma once
#include <algorithm>
#include <cstring>

#include "activation.hpp"
#include "simd.hpp"
#include "tuning.hpp"

namespace rewire {

constexpr int TOKENS = TOKEN_VECTORS * WIDTH;  // tokens of a tile
constexpr int FEATURES = 16;                   // features of a group

inline int32_t feature_groups(int32_t features) { return (features + FEATURES - 1) / FEATURES; }

// A group of features of one tile of tokens, in the caller's order: [TOKENS][FEATURES].
struct alignas(64) TokenGroup {
    float at[TOKENS][FEATURES];
};

typedef uint16_t HalfVector __attribute__((vector_size(2 * WIDTH)));

// bfloat16 is the upper half of a float. Narrowing rounds to the nearest, ties to even; NaN stays NaN.
inline Vector widen(const uint16_t *from) {
    HalfVector half;
    std::memcpy(&half, from, sizeof half);
    return (Vector)(__builtin_convertvector(half, BitVector) << 16);
}
inline void narrow(uint16_t *to, Vector value) {
    const BitVector bits = (BitVector)value, rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const BitVector chosen = (bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : rounded;
    const HalfVector half = __builtin_convertvector(chosen >> 16, HalfVector);
    std::memcpy(to, &half, sizeof half);
}

inline Vector read_vector(const float *from) { return load<Vector>(from); }
inline Vector read_vector(const uint16_t *from) { return widen(from); }
inline void write_vector(float *to, Vector value) { store<Vector>(to, value); }
inline void write_vector(uint16_t *to, Vector value) { narrow(to, value); }

// An activation of either type in token-major memory. Tokens are `stride` elements apart, their features contiguous.
struct TokenMatrix {
    void *data;
    int64_t stride;
    int32_t features;
    bool is_bfloat16;

    // Calls work(pointer to the element) with the type of the elements.
    template <class Work> void at(int64_t token, int32_t feature, Work work) const {
        const int64_t index = token * stride + feature;
        if (is_bfloat16) work(static_cast<uint16_t *>(data) + index);
        else work(static_cast<float *>(data) + index);
    }
};

// Calls work(vector index in the group, pointer) for the vectors of one token's group. Where the group ends beyond the last
// feature, it works on a copy: of what is there before, and back into what is there after, if the pointer is not const.
template <class Element, class Work>
inline void for_each_vector_of(Element *token, int32_t features, bool writes, Work work) {
    if (features >= FEATURES) {
        UNROLL for (int v = 0; v < FEATURES / WIDTH; v++) work(v, token + v * WIDTH);
        return;
    }
    Element copy[FEATURES] = {};
    if (!writes) std::memcpy(copy, token, sizeof(Element) * size_t(features));
    UNROLL for (int v = 0; v < FEATURES / WIDTH; v++) work(v, copy + v * WIDTH);
    if (writes) std::memcpy(token, copy, sizeof(Element) * size_t(features));
}

// Reads `count` tokens from `first` on; the rest of the group becomes zeros.
inline void read_group(const TokenMatrix &from, int64_t first, int64_t count, int32_t feature, TokenGroup &group) {
    from.at(first, feature, [&](auto *token) {
        for (int64_t t = 0; t < count; t++, token += from.stride)
            for_each_vector_of(token, from.features - feature, false, [&](int v, auto *element) {
                store<Vector>(group.at[t] + v * WIDTH, read_vector(element));
            });
    });
    if (count < TOKENS) std::memset(group.at[count], 0, sizeof(float) * size_t((TOKENS - count) * FEATURES));
}

// Writes the first `count` tokens of a group.
inline void write_group(const TokenMatrix &to, int64_t first, int64_t count, int32_t feature, const TokenGroup &group) {
    to.at(first, feature, [&](auto *token) {
        for (int64_t t = 0; t < count; t++, token += to.stride)
            for_each_vector_of(token, to.features - feature, true, [&](int v, auto *element) {
                write_vector(element, load<Vector>(group.at[t] + v * WIDTH));
            });
    });
}

// Four rows of four floats, transposed.
inline void transpose_quads(Quad &a, Quad &b, Quad &c, Quad &d) {
    const Quad p = __builtin_shufflevector(a, b, 0, 4, 1, 5), q = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const Quad r = __builtin_shufflevector(c, d, 0, 4, 1, 5), s = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    a = __builtin_shufflevector(p, r, 0, 1, 4, 5), b = __builtin_shufflevector(p, r, 2, 3, 6, 7);
    c = __builtin_shufflevector(q, s, 0, 1, 4, 5), d = __builtin_shufflevector(q, s, 2, 3, 6, 7);
}

// to[COLUMNS][ROWS] = from[ROWS][COLUMNS], transposed.
template <int ROWS, int COLUMNS> inline void transpose(const float *from, float *to) {
    for (int i = 0; i < ROWS; i += 4)
        UNROLL for (int j = 0; j < COLUMNS; j += 4) {
            Quad a = load<Quad>(from + i * COLUMNS + j), b = load<Quad>(from + (i + 1) * COLUMNS + j);
            Quad c = load<Quad>(from + (i + 2) * COLUMNS + j), d = load<Quad>(from + (i + 3) * COLUMNS + j);
            transpose_quads(a, b, c, d);
            store<Quad>(to + j * ROWS + i, a), store<Quad>(to + (j + 1) * ROWS + i, b);
            store<Quad>(to + (j + 2) * ROWS + i, c), store<Quad>(to + (j + 3) * ROWS + i, d);
        }
}

// Between a group in the caller's order and its rows [FEATURES][TOKENS] in a tile.
inline void to_rows(const TokenGroup &group, float *rows) { transpose<TOKENS, FEATURES>(&group.at[0][0], rows); }
inline void from_rows(const float *rows, TokenGroup &group) { transpose<FEATURES, TOKENS>(rows, &group.at[0][0]); }

}  // namespace rewire
