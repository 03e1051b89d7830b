// A chain of stages, each a convolution and the batch norm behind it, with a sum, a ReLU and a 2x2 max pooling if they follow.
// It runs forward in one native call and backward in another. rewire/kernels/batch/chain.py fills these structures.
#pragma once
#include "conv_csr.hpp"
#include "csr_build.hpp"

namespace rewire {

// Both passes of a convolution, as rewire/kernels/batch/plan.py makes them.
struct ConvPasses {
    LayerShape shape;
    ForwardCsr forward_csr;
    ConvCsr forward, backward;
    const int32_t *backward_tap_rank, *backward_tap_offset;  // as in CsrArrays
    int32_t dense_forward, dense_backward;                   // which passes are computed dense
};

// Activations have numbers: 0 is the input of the chain, i + 1 the output of stage i.
struct ChainStage {
    ConvPasses conv;
    int32_t source;  // the activation that the convolution reads
    int32_t addend;  // the one that is added between batch norm and ReLU; -1: none
    int32_t pool;    // whether a 2x2 max pooling follows; not together with an addend
    int32_t is_int64;
    float eps, relu_limit;  // below zero: no ReLU
    const void *positions;  // sorted
    const float *values, *conv_bias, *weight, *bias;  // `conv_bias` may be null
    float *mean, *variance;   // of the convolution's output: the forward pass fills them
    float *before_norm;       // the convolution's output
    float *output;            // the backward pass reads it behind a sum with a ReLU only
};

// Where the backward pass of a stage reads and writes gradients. A part is what stages behind this one have added up so far.
struct StageGradients {
    const float *output;       // of the stage's output
    float *before_relu;        // receives that of the sum, where a ReLU follows one; else null
    const float *addend_part;  // null: none, and the gradient before the ReLU is that of the addend
    float *addend;             // receives that gradient plus the part
    float *before_norm;        // receives that of the convolution's output
    const float *source_part;  // null: none
    float *source;             // receives that of the source, plus the part; null: not needed
    float *values;             // null: not needed
    float *weight, *bias;      // of batch norm
};

}  // namespace rewire
