// Every constant of the native kernels that is a choice, with what it trades. Change one, rebuild (`python -m
// rewire.kernels.build`) and measure: `python -m benchmarks.im2col` for single layers, `python -m benchmarks.packed` for whole
// networks. None of them changes what is computed, only the order of sums and the speed. The choices made in Python are in
// rewire/kernels/tuning.py.
#pragma once
#include <cstdint>

#include "simd.hpp"

namespace rewire {

// ---- Register tiles: how many accumulators an inner loop keeps in registers. Enough to hide the latency of a multiply-add and
// to share each weight that is loaded; not so many that the compiler spills them to memory (16 registers up to AVX2, 32 in
// AVX-512).

constexpr int FORWARD_TILE = 8;  // vectors of the batch (times pixels, with im2col) that one output row accumulates, forward

// The same in the backward pass, which holds two vectors for each of these: an accumulator and the layer's input.
#if defined(__AVX512F__)
constexpr int BACKWARD_TILE = 8;
#else
constexpr int BACKWARD_TILE = 4;
#endif

constexpr int TILE_VECTORS = 2;  // vectors of the batch in an im2col tile; the accumulators are divided by this into pixels
constexpr int64_t TILE_BATCH = TILE_VECTORS * WIDTH;  // the same in samples: im2col needs a batch that is a multiple of it

// Token-major linear layers: vectors of tokens in a tile. More of them share each weight and index that is loaded, but the tile
// has to stay in L2: 32 tokens (64 with AVX-512) of 1,536 features are 196 KB (393 KB).
constexpr int TOKEN_VECTORS = 4;

constexpr int DENSE_ROWS = 6;     // dense convolution: output channels of a block, times
constexpr int DENSE_VECTORS = 2;  // vectors of the batch: 12 accumulators, 2 inputs and a weight fill the 16 registers of AVX2
constexpr int GRAD_ROWS = 3;      // its weight gradients: output channels of a block, times
constexpr int GRAD_COLUMNS = 4;   // inputs: 12 accumulators; four, because horizontal_add sums four vectors at once

constexpr int SAMPLE_TILE = 12;                         // one sample: vectors of pixels that a sparse row accumulates,
constexpr int SAMPLE_ROWS = 4;                          // rows of a dense layer that share what they load,
constexpr int SAMPLE_DENSE_TILE = WIDTH == 16 ? 6 : 3;  // vectors of pixels that each of these accumulates,
constexpr int GATHER_SUMS = 8;                          // independent sums of a sparse dot product,
constexpr int DOT_SUMS = 4;                             // and vectors of independent sums of a dense one

// ---- Caches: sizes that keep a working set in L1 or L2.

// Floats of an output from which on it is written past the caches (4 MB): a smaller one may still be cached when it is read
// next.
constexpr int64_t NONTEMPORAL_MIN = 1 << 20;

// Direct convolution with several column blocks: bytes of output that stay in L2 while one block after the other is added.
constexpr int64_t ROW_BLOCK_BYTES = 128 << 10;
// Up to so many bytes, the input of a column block stays in L2 for the whole batch. Rows are then taken in blocks of so many
// non-zeros that their CSR arrays stay in L1 while the tiles of the batch pass by.
constexpr int64_t COL_BLOCK_BYTES = 300'000;
constexpr int64_t ROW_BLOCK_NNZ = 4096;

constexpr int32_t PREFETCH_ROWS = 8;  // pixels, one below the other, that are prefetched for the next output pixel at most

// im2col with several column blocks: bytes of partial sums that wait for the next block. They decide the height of a group of
// output pixels: a higher one shares more of its tile between rows.
constexpr int64_t PARTIAL_SUM_BYTES = 128 << 10;
constexpr int32_t MAX_GROUP_HEIGHT = 8;

// A 1x1 convolution is computed with im2col tiles if an output channel has so many non-zeros on average: a tile is packed once
// and read by every non-zero.
constexpr int32_t IM2COL_MIN_ROW_NNZ = 32;

constexpr int64_t ELEMENTWISE_CHUNK = 4096;  // floats that one thread takes at a time in elementwise passes
constexpr int64_t POOL_CHUNK = 256;          // floats of a pixel that pooling takes at a time: its scratch stays in L1

// ---- Threads: work below which another thread costs more than it saves.

constexpr int64_t ONE_THREAD_PRODUCTS = 1 << 17;   // multiply-adds below which a layer runs on one thread,
constexpr int64_t TWO_THREADS_PRODUCTS = 1 << 20;  // and below which it runs on two at most
constexpr int32_t PARTS_PER_THREAD = 2;            // a layer is split by rows if there are fewer groups of pixels per thread
constexpr int64_t SORT_THREADS_NNZ = 1 << 14;      // non-zeros from which on sorting them uses several threads
constexpr int32_t ROW_OVERHEAD = 4;                // one sample: what a row costs besides its non-zeros, in non-zeros

}  // namespace rewire
