// Runs a chain of stages (chain.hpp): the kernels of every stage, one after the other, in one call for each pass.
#include "chain.hpp"

#include "batch_kernels.hpp"
#include "scratch.hpp"

namespace rewire {
namespace {

thread_local Scratch channel_memory;

// Numbers for every channel of one stage. `product_sum` and those behind it belong to the backward pass.
struct ChannelVectors {
    float *scale, *shift, *product_sum, *x_factor, *constant;

    explicit ChannelVectors(int64_t channels) {
        scale = channel_memory.take<float>(5 * channels);
        shift = scale + channels, product_sum = shift + channels;
        x_factor = product_sum + channels, constant = x_factor + channels;
    }
};

// What the kernels need to know about one stage.
struct Sizes {
    int32_t height, width, channels;  // of the convolution's output
    int64_t pixels;

    explicit Sizes(const ChainStage &stage)
        : height(stage.conv.forward.y.size), width(stage.conv.forward.x.size), channels(stage.conv.shape.out_channels),
          pixels(int64_t(height) * width) {}
};

const float *activation(const ChainStage *stages, int32_t number, const float *input) {
    return number == 0 ? input : stages[number - 1].output;
}

void line(const ChainStage &stage, const Sizes &size, const ChannelVectors &own) {
    rewire_batch_norm_line(stage.weight, stage.bias, stage.mean, stage.variance, stage.eps, size.channels, own.scale, own.shift);
}

void conv_forward(const ChainStage &stage, const float *source, int64_t batch, int threads) {
    const ConvPasses &conv = stage.conv;
    if (conv.dense_forward)
        rewire_conv_dense_forward(&conv.shape, &conv.forward, conv.forward_csr.tap_offset, stage.positions, stage.is_int64,
                                  source, stage.values, stage.conv_bias, stage.before_norm, stage.mean, stage.variance, batch,
                                  0, 0.f, threads);
    else
        rewire_conv_forward(&conv.shape, &conv.forward_csr, &conv.forward, stage.positions, stage.is_int64, source,
                            stage.values, stage.conv_bias, stage.before_norm, stage.mean, stage.variance, batch, 0, 0.f,
                            threads);
}

void norm_forward(const ChainStage &stage, const float *addend, int64_t batch, int threads) {
    const Sizes size(stage);
    const ChannelVectors own(size.channels);
    const int relu = stage.relu_limit >= 0;
    line(stage, size, own);
    if (stage.pool)
        rewire_batch_norm_pool(stage.before_norm, size.height / 2, size.width / 2, size.channels, batch, own.scale, own.shift,
                               relu, stage.relu_limit, stage.output, threads);
    else
        rewire_batch_norm(stage.before_norm, size.pixels, size.channels, batch, own.scale, own.shift, relu, stage.relu_limit,
                          addend, stage.output, threads);
}

// The gradients of batch norm's weight and bias and of what it reads, and that of the addend.
void norm_backward(const ChainStage &stage, const StageGradients &grad, int64_t batch, int threads) {
    const Sizes size(stage);
    const ChannelVectors own(size.channels);
    const float *x = stage.before_norm, *before_relu = grad.output;
    int relu = stage.relu_limit >= 0;
    line(stage, size, own);
    if (grad.before_relu) {
        batch_norm_add_grad_sums(x, grad.output, stage.output, stage.mean, size.pixels, size.channels, batch, stage.relu_limit,
                                 grad.before_relu, grad.bias, own.product_sum, threads);
        before_relu = grad.before_relu, relu = 0;
    } else if (stage.pool) {
        rewire_batch_norm_pool_grad_sums(x, grad.output, stage.mean, size.height / 2, size.width / 2, size.channels, batch,
                                         own.scale, own.shift, relu, stage.relu_limit, grad.bias, own.product_sum, threads);
    } else {
        rewire_batch_norm_grad_sums(x, grad.output, stage.mean, size.pixels, size.channels, batch, own.scale, own.shift, relu,
                                    stage.relu_limit, grad.bias, own.product_sum, threads);
    }
    rewire_batch_norm_factors(own.scale, stage.mean, stage.variance, stage.eps, grad.bias, own.product_sum, size.pixels * batch,
                              size.channels, grad.weight, own.x_factor, own.constant);
    if (stage.pool)
        rewire_batch_norm_pool_grad_input(x, grad.output, size.height / 2, size.width / 2, size.channels, batch, own.scale,
                                          own.shift, relu, stage.relu_limit, own.scale, own.x_factor, own.constant,
                                          grad.before_norm, threads);
    else
        rewire_batch_norm_grad_input(x, before_relu, size.pixels, size.channels, batch, own.scale, own.shift, relu,
                                     stage.relu_limit, own.scale, own.x_factor, own.constant, grad.before_norm, threads);
    if (grad.addend_part)
        rewire_add_relu(grad.addend_part, before_relu, size.pixels * size.channels * batch, 0, 0.f, grad.addend, threads);
}

void conv_backward(const ChainStage &stage, const StageGradients &grad, const float *source, int64_t batch, int threads) {
    const ConvPasses &conv = stage.conv;
    if (!grad.source && !grad.values) return;
    if (conv.dense_backward)
        rewire_conv_dense_backward(&conv.shape, &conv.forward, &conv.backward, conv.forward_csr.tap_offset,
                                   conv.backward_tap_rank, conv.backward_tap_offset, stage.positions, stage.is_int64, source,
                                   grad.before_norm, stage.values, grad.source_part, grad.source, grad.values, batch, threads);
    else
        rewire_conv_backward(&conv.backward, source, grad.before_norm, stage.values, grad.source_part, grad.source,
                             grad.values, batch, threads);
}

}  // namespace
}  // namespace rewire

using namespace rewire;

// Fills the moments, the convolutions' outputs and the outputs of all stages.
EXPORT void rewire_chain_forward(const ChainStage *stages, int32_t count, const float *input, int64_t batch, int threads) {
    for (int32_t i = 0; i < count; i++) {
        const ChainStage &stage = stages[i];
        conv_forward(stage, activation(stages, stage.source, input), batch, threads);
        norm_forward(stage, stage.addend < 0 ? nullptr : activation(stages, stage.addend, input), batch, threads);
    }
}
REGISTER(rewire_chain_forward);

// Fills the gradients of all stages, from the last to the first.
EXPORT void rewire_chain_backward(const ChainStage *stages, const StageGradients *gradients, int32_t count, const float *input,
                                  int64_t batch, int threads) {
    for (int32_t i = count - 1; i >= 0; i--) {
        norm_backward(stages[i], gradients[i], batch, threads);
        conv_backward(stages[i], gradients[i], activation(stages, stages[i].source, input), batch, threads);
    }
}
REGISTER(rewire_chain_backward);
