// The kernels that a chain of stages calls (chain.cpp), as they are defined in dispatch.cpp, conv_dense.cpp, batch_norm.cpp,
// batch_norm_pool.cpp and relu.cpp, which include this file: the compiler refuses a definition that differs.
#pragma once
#include "conv_csr.hpp"
#include "csr_build.hpp"
#include "entry_point.hpp"

// dispatch.cpp
EXPORT void rewire_conv_forward(const rewire::LayerShape *shape, const rewire::ForwardCsr *forward, const rewire::ConvCsr *conv,
                                const void *positions, int is_int64, const float *input, const float *values,
                                const float *bias, float *output, float *mean, float *variance, int64_t batch, int relu,
                                float limit, int threads);
EXPORT void rewire_conv_backward(const rewire::ConvCsr *conv, const float *input, const float *grad_output,
                                 const float *values, const float *addend, float *grad_input, float *grad_values,
                                 int64_t batch, int threads);

// conv_dense.cpp
EXPORT void rewire_conv_dense_forward(const rewire::LayerShape *shape, const rewire::ConvCsr *forward,
                                      const int32_t *tap_offset, const void *positions, int is_int64, const float *input,
                                      const float *values, const float *bias, float *output, float *mean, float *variance,
                                      int64_t batch, int relu, float limit, int threads);
EXPORT void rewire_conv_dense_backward(const rewire::LayerShape *shape, const rewire::ConvCsr *forward,
                                       const rewire::ConvCsr *backward, const int32_t *tap_offset, const int32_t *tap_rank,
                                       const int32_t *backward_tap_offset, const void *positions, int is_int64,
                                       const float *input, const float *grad_output, const float *values,
                                       const float *addend, float *grad_input, float *grad_values, int64_t batch, int threads);

// batch_norm.cpp
EXPORT void rewire_batch_norm_line(const float *weight, const float *bias, const float *mean, const float *variance, float eps,
                                   int32_t channels, float *scale, float *shift);
EXPORT void rewire_batch_norm(const float *x, int64_t pixels, int32_t channels, int64_t batch, const float *scale,
                              const float *shift, int relu, float limit, const float *addend, float *y, int threads);
EXPORT void rewire_batch_norm_grad_sums(const float *x, const float *grad_output, const float *mean, int64_t pixels,
                                        int32_t channels, int64_t batch, const float *scale, const float *shift, int relu,
                                        float limit, float *grad_sum, float *product_sum, int threads);
EXPORT void rewire_batch_norm_factors(const float *scale, const float *mean, const float *variance, float eps,
                                      const float *grad_sum, const float *product_sum, int64_t count, int32_t channels,
                                      float *grad_weight, float *x_factor, float *constant);
EXPORT void rewire_batch_norm_grad_input(const float *x, const float *grad_output, int64_t pixels, int32_t channels,
                                         int64_t batch, const float *scale, const float *shift, int relu, float limit,
                                         const float *grad_factor, const float *x_factor, const float *constant,
                                         float *grad_input, int threads);

// batch_norm_pool.cpp
EXPORT void rewire_batch_norm_pool(const float *x, int32_t height, int32_t width, int32_t channels, int64_t batch,
                                   const float *scale, const float *shift, int relu, float limit, float *y, int threads);
EXPORT void rewire_batch_norm_pool_grad_sums(const float *x, const float *grad_output, const float *mean, int32_t height,
                                             int32_t width, int32_t channels, int64_t batch, const float *scale,
                                             const float *shift, int relu, float limit, float *grad_sum,
                                             float *product_sum, int threads);
EXPORT void rewire_batch_norm_pool_grad_input(const float *x, const float *grad_output, int32_t height, int32_t width,
                                              int32_t channels, int64_t batch, const float *scale, const float *shift,
                                              int relu, float limit, const float *grad_factor, const float *x_factor,
                                              const float *constant, float *grad_input, int threads);

// relu.cpp
EXPORT void rewire_add_relu(const float *x, const float *other, int64_t size, int relu, float limit, float *y, int threads);

namespace rewire {

// batch_norm.cpp: as rewire_batch_norm_grad_sums where an addend comes between batch norm and ReLU: the ReLU is flat where its
// output `y` is at a limit. `grad` receives the gradient before the ReLU, which is that of the addend as well.
void batch_norm_add_grad_sums(const float *x, const float *grad_output, const float *y, const float *mean, int64_t pixels,
                              int32_t channels, int64_t batch, float limit, float *grad, float *grad_sum, float *product_sum,
                              int threads);

}  // namespace rewire
