// The part of a map that a few neighbouring pixels read, copied into one piece, block of channels by block of channels.
//
// In the map itself, the pieces of the batch that a tile reads lie a power of two apart, where caches hold only a few of them
// at a time. The copy is dense, has zeros for columns outside of the map, and serves every row that is written.
#pragma once
#include <vector>

#include "gather.hpp"
#include "passes.hpp"
#include "vector.hpp"

namespace rewire {

// Pixels along one axis that meet the same taps, one step apart.
struct Group {
    int32_t first, count, step;
    int32_t at(int32_t i) const { return first + i * step; }
};

constexpr int DEEP = 2;                     // vectors of the batch that a tile has of a pixel
constexpr int64_t DEPTH = DEEP * WIDTH;  // the same in floats

struct Windows {
    const Gather &g;
    int32_t pixels, lines;           // a group is so many pixels wide, and tall at most
    int32_t top, left;               // the least that any tap reaches
    int32_t tall, broad, deep;       // of a copy: pixels, and channels of the widest block
    std::vector<Group> down, across;

    // For tiles of so many vectors.
    Windows(const Gather &gather, int32_t vectors);

    int64_t groups() const { return int64_t(down.size() * across.size()); }
    int64_t column() const { return deep * DEPTH; }
    int64_t line() const { return broad * column(); }
    int64_t size() const { return tall * line(); }
    int32_t channel(int32_t block) const;  // the first of a block
};

// Whether there are windows for such a layer and batch, and whether they are worth their copies.
bool fits_windows(const Gather &g, int64_t batch, int32_t vectors);

void windows_forward(const Outward &f, const Windows &w, const Division &division);
void windows_backward(const Inward &b, const Windows &w, const Division &division);

}  // namespace rewire
