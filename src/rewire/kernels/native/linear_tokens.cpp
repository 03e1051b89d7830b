// Sparse linear layers on token-major activations [tokens][features]: both passes, one tile of tokens at a time, so that no
// activation is ever transposed as a whole (token_tile.hpp).
//
// The forward pass transposes a tile of the input and computes the output one group of features after the other. The backward
// pass transposes a tile of the output's gradient, takes it through the activation function on the way and sums the gradient
// of the bias; then, one group of input features after the other, every vector of that gradient is used twice: times the
// weight for the gradient of the input, and times the input for the gradient of the weight.
#include <omp.h>

#include "conv_args.hpp"
#include "entry_point.hpp"
#include "linear_csr.hpp"
#include "scratch.hpp"
#include "token_tile.hpp"

using namespace rewire;

namespace {

thread_local Scratch tile_memory, value_memory, grad_memory, bias_memory;

struct alignas(64) TileRows {
    float at[FEATURES][TOKENS];
};

// Rows [first, first + count) of the product of the weight and a tile.
template <class Index>
__attribute__((noinline)) void multiply_rows(const CsrRows &csr, const float *values, const float *tile, int32_t first,
                                             int32_t count, TileRows &out) {
    const Index *col_idx = static_cast<const Index *>(csr.col_idx);
    for (int32_t i = 0; i < count; i++) {
        const int32_t row = first + i, end = csr.row_ptr[row + 1];
        const Index row_start = Index(row * csr.row_stride);
        Vector sum[TOKEN_VECTORS] = {};
        for (int32_t k = csr.row_ptr[row]; k < end; k++) {
            const float *read = tile + int64_t(col_idx[k] - row_start) * TOKENS;
            const Vector value = broadcast<Vector>(values[k]);
            UNROLL for (int v = 0; v < TOKEN_VECTORS; v++) sum[v] += value * load<Vector>(read + v * WIDTH);
        }
        UNROLL for (int v = 0; v < TOKEN_VECTORS; v++) store<Vector>(out.at[i] + v * WIDTH, sum[v]);
    }
}

// The same over the transpose, where rows are input features and `tile` holds the gradient of the output. `input`: the rows'
// own activations.
template <class Index, bool GRAD_INPUT, bool GRAD_VALUES>
__attribute__((noinline)) void backward_rows(const CsrRows &csr, const float *values, const float *tile, int32_t first,
                                             int32_t count, const TileRows &input, TileRows &grad_input,
                                             float *grad_values) {
    const Index *col_idx = static_cast<const Index *>(csr.col_idx);
    for (int32_t i = 0; i < count; i++) {
        const int32_t row = first + i;
        const Index row_start = Index(row * csr.row_stride);
        Vector sum[TOKEN_VECTORS] = {}, x[TOKEN_VECTORS];
        UNROLL for (int v = 0; v < TOKEN_VECTORS; v++)
            x[v] = GRAD_VALUES ? load<Vector>(input.at[i] + v * WIDTH) : Vector{};
        auto products = [&](int32_t k) {
            const float *read = tile + int64_t(col_idx[k] - row_start) * TOKENS;
            const Vector value = GRAD_INPUT ? broadcast<Vector>(values[k]) : Vector{};
            Vector product{};
            UNROLL for (int v = 0; v < TOKEN_VECTORS; v++) {
                const Vector grad = load<Vector>(read + v * WIDTH);
                if constexpr (GRAD_INPUT) sum[v] += value * grad;
                if constexpr (GRAD_VALUES) product += grad * x[v];
            }
            return product;
        };
        accumulate_grad_values<GRAD_VALUES, Vector>(csr.row_ptr[row], csr.row_ptr[row + 1], grad_values, products);
        if constexpr (GRAD_INPUT)
            UNROLL for (int v = 0; v < TOKEN_VECTORS; v++) store<Vector>(grad_input.at[i] + v * WIDTH, sum[v]);
    }
}

// Applies bias and activation to a group; `before` receives what the activation function is applied to, if it is not null.
template <int KIND>
void finish_group(TokenGroup &group, const float *bias, float limit, TokenGroup *before) {
    Vector shift[FEATURES / WIDTH];
    UNROLL for (int v = 0; v < FEATURES / WIDTH; v++) shift[v] = load<Vector>(bias + v * WIDTH);
    for (int t = 0; t < TOKENS; t++)
        UNROLL for (int v = 0; v < FEATURES / WIDTH; v++) {
            const Vector x = load<Vector>(group.at[t] + v * WIDTH) + shift[v];
            if (before) store<Vector>(before->at[t] + v * WIDTH, x);
            store<Vector>(group.at[t] + v * WIDTH, activate<KIND>(x, limit).value);
        }
}

// Multiplies a group of the output's gradient by the slope of the activation function at `saved`; adds it up over the tokens.
template <int KIND> void scale_group(TokenGroup &grad, const TokenGroup &saved, float limit, float *bias_sums) {
    Vector sum[FEATURES / WIDTH];
    UNROLL for (int v = 0; v < FEATURES / WIDTH; v++) sum[v] = load<Vector>(bias_sums + v * WIDTH);
    for (int t = 0; t < TOKENS; t++)
        UNROLL for (int v = 0; v < FEATURES / WIDTH; v++) {
            Vector g = load<Vector>(grad.at[t] + v * WIDTH);
            if constexpr (KIND != IDENTITY) {
                g *= activate<KIND>(load<Vector>(saved.at[t] + v * WIDTH), limit).slope;
                store<Vector>(grad.at[t] + v * WIDTH, g);
            }
            sum[v] += g;
        }
    UNROLL for (int v = 0; v < FEATURES / WIDTH; v++) store<Vector>(bias_sums + v * WIDTH, sum[v]);
}

// The part of a bias that belongs to a group, zeros beyond its end and without a bias.
struct alignas(64) GroupBias {
    float at[FEATURES] = {};
    GroupBias(const float *bias, int32_t first, int32_t features) {
        if (bias) std::copy(bias + first, bias + std::min(first + FEATURES, features), at);
    }
};

struct ForwardTask {
    const CsrRows &csr;
    const float *values, *bias;
    TokenMatrix x, y, before;  // before.data may be null
    int64_t tokens;
    int32_t activation;
    float limit;
};

template <class Index> void forward_tile(const ForwardTask &task, int64_t first, float *tile) {
    const int64_t count = std::min<int64_t>(TOKENS, task.tokens - first);
    TokenGroup group, before;
    TileRows rows;
    for (int32_t feature = 0; feature < task.x.features; feature += FEATURES) {
        read_group(task.x, first, count, feature, group);
        to_rows(group, tile + int64_t(feature) * TOKENS);
    }
    for (int32_t feature = 0; feature < task.y.features; feature += FEATURES) {
        multiply_rows<Index>(task.csr, task.values, tile, feature, std::min(FEATURES, task.y.features - feature), rows);
        from_rows(&rows.at[0][0], group);
        const GroupBias bias(task.bias, feature, task.y.features);
        dispatch_activation(task.activation, [&](auto kind) {
            finish_group<kind.value>(group, bias.at, task.limit, task.before.data ? &before : nullptr);
        });
        write_group(task.y, first, count, feature, group);
        if (task.before.data) write_group(task.before, first, count, feature, before);
    }
}

struct BackwardTask {
    const CsrRows &csr;
    const float *values;
    TokenMatrix x, grad_output, saved, grad_input;  // the data of `saved` and `grad_input` may be null
    int64_t tokens;
    int32_t activation;
    float limit;
};

// `grad_values` and `grad_bias`: sums of this thread.
template <class Index, bool GRAD_INPUT, bool GRAD_VALUES>
void backward_tile(const BackwardTask &task, int64_t first, float *tile, float *grad_values, float *grad_bias) {
    const int64_t count = std::min<int64_t>(TOKENS, task.tokens - first);
    TokenGroup group, saved;
    TileRows input, grad_input;
    for (int32_t feature = 0; feature < task.grad_output.features; feature += FEATURES) {
        read_group(task.grad_output, first, count, feature, group);
        if (task.activation != IDENTITY) read_group(task.saved, first, count, feature, saved);
        dispatch_activation(task.activation, [&](auto kind) {
            scale_group<kind.value>(group, saved, task.limit, grad_bias + feature);
        });
        to_rows(group, tile + int64_t(feature) * TOKENS);
    }
    if constexpr (GRAD_INPUT || GRAD_VALUES)
        for (int32_t feature = 0; feature < task.x.features; feature += FEATURES) {
            if constexpr (GRAD_VALUES) {
                read_group(task.x, first, count, feature, group);
                to_rows(group, &input.at[0][0]);
            }
            backward_rows<Index, GRAD_INPUT, GRAD_VALUES>(task.csr, task.values, tile, feature,
                                                          std::min(FEATURES, task.x.features - feature), input, grad_input,
                                                          grad_values);
            if constexpr (GRAD_INPUT) {
                from_rows(&grad_input.at[0][0], group);
                write_group(task.grad_input, first, count, feature, group);
            }
        }
}

int64_t tile_count(int64_t tokens) { return (tokens + TOKENS - 1) / TOKENS; }

int team_size(const LinearCsr &csr, int64_t tokens, int threads) {
    const int64_t products = (csr.nnz + csr.inputs.rows + csr.outputs.rows) * tokens;
    return int(std::min<int64_t>(products < ONE_THREAD_PRODUCTS ? 1 : threads, tile_count(tokens)));
}

// Values in the order of one direction.
const float *in_order(const CsrRows &csr, int64_t nnz, const float *values) {
    if (!csr.perm) return values;
    float *sorted = value_memory.take<float>(nnz);
    for (int64_t k = 0; k < nnz; k++) sorted[k] = values[csr.perm[k]];
    return sorted;
}

// Calls work(index type) for column indices of 32 or 64 bits.
template <class Work> void dispatch_index(const CsrRows &csr, Work work) {
    csr.is_int64 ? work(int64_t{}) : work(int32_t{});
}

}  // namespace

// y = activation(x * weight^T + bias) for `tokens` rows. `bias` may be null; `before`, if not null, receives what the activation
// function is applied to, which the backward pass needs.
EXPORT void rewire_linear_tokens_forward(const LinearCsr *csr, void *x, int64_t x_stride, int x_bfloat16, const float *values,
                                         const float *bias, void *y, void *before, int y_bfloat16, int64_t tokens,
                                         int activation, float limit, int threads) {
    const int32_t inputs = csr->inputs.rows, outputs = csr->outputs.rows;
    const ForwardTask task{csr->outputs,
                           in_order(csr->outputs, csr->nnz, values),
                           bias,
                           {x, x_stride, inputs, x_bfloat16 != 0},
                           {y, outputs, outputs, y_bfloat16 != 0},
                           {before, outputs, outputs, y_bfloat16 != 0},
                           tokens,
                           activation,
                           limit};
#pragma omp parallel num_threads(team_size(*csr, tokens, threads))
    {
        float *tile = tile_memory.take<float>(int64_t(feature_groups(inputs)) * FEATURES * TOKENS);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tile_count(tokens); i++)
            dispatch_index(task.csr, [&](auto index) { forward_tile<decltype(index)>(task, i * TOKENS, tile); });
    }
}
REGISTER(rewire_linear_tokens_forward);

// The gradients of the input, of the values and of the bias; each may be null. `saved`: what the activation function was applied
// to (of a ReLU, also its output); null without one.
EXPORT void rewire_linear_tokens_backward(const LinearCsr *csr, void *x, int64_t x_stride, int x_bfloat16, void *grad_output,
                                          int64_t grad_stride, void *saved, int y_bfloat16, const float *values,
                                          void *grad_input, float *grad_values, float *grad_bias, int64_t tokens,
                                          int activation, float limit, int threads) {
    const int team = team_size(*csr, tokens, threads);
    const int32_t inputs = csr->inputs.rows, outputs = csr->outputs.rows;
    const int64_t nnz = csr->nnz, sums = int64_t(feature_groups(outputs)) * FEATURES;
    float *buffers = grad_memory.take<float>(grad_values ? nnz * team : 0);
    float *bias_buffers = bias_memory.take<float>(sums * team);
    const BackwardTask task{csr->inputs,
                            in_order(csr->inputs, nnz, values),
                            {x, x_stride, inputs, x_bfloat16 != 0},
                            {grad_output, grad_stride, outputs, y_bfloat16 != 0},
                            {saved, outputs, outputs, y_bfloat16 != 0},
                            {grad_input, inputs, inputs, x_bfloat16 != 0},
                            tokens,
                            activation,
                            limit};
#pragma omp parallel num_threads(team)
    {
        float *tile = tile_memory.take<float>(sums * TOKENS);
        float *own_bias = bias_buffers + sums * omp_get_thread_num();
        float *own_values = grad_values ? buffers + nnz * omp_get_thread_num() : nullptr;
#pragma omp for schedule(static)
        for (int buffer = 0; buffer < team; buffer++) {  // all of them, even if fewer threads were started
            std::fill_n(bias_buffers + sums * buffer, sums, 0.f);
            if (grad_values) std::fill_n(buffers + nnz * buffer, nnz, 0.f);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tile_count(tokens); i++)
            dispatch_index(task.csr, [&](auto index) {
                typedef decltype(index) Index;
                const int64_t first = i * TOKENS;
                if (grad_input && grad_values) backward_tile<Index, true, true>(task, first, tile, own_values, own_bias);
                else if (grad_input) backward_tile<Index, true, false>(task, first, tile, own_values, own_bias);
                else if (grad_values) backward_tile<Index, false, true>(task, first, tile, own_values, own_bias);
                else backward_tile<Index, false, false>(task, first, tile, own_values, own_bias);
            });
#pragma omp for schedule(static)
        for (int64_t k = 0; k < (grad_values ? nnz : 0); k++) {
            float total = buffers[k];
            for (int buffer = 1; buffer < team; buffer++) total += buffers[k + buffer * nnz];
            grad_values[csr->inputs.perm ? csr->inputs.perm[k] : k] = total;
        }
    }
    for (int32_t i = 0; i < (grad_bias ? outputs : 0); i++) {
        grad_bias[i] = 0.f;
        for (int buffer = 0; buffer < team; buffer++) grad_bias[i] += bias_buffers[i + buffer * sums];
    }
}
REGISTER(rewire_linear_tokens_backward);
