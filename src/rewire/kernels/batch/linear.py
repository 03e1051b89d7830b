"""Sparse linear layers on token-major activations: inputs (..., features) are read as they are in memory.

Tiles of a few tokens are transposed inside of the kernel (native/linear_tokens.cpp). Activations are float32 or
bfloat16, weights, their gradients and all sums float32.
"""

from typing import Any

import torch
from torch import Tensor

from rewire._torch import differentiable_once
from rewire.kernels.batch.activation import IDENTITY, Activation
from rewire.kernels.batch.conv import address
from rewire.kernels.batch.linear_plan import InputsFirstPlan, LinearPlan
from rewire.kernels.geometry import Geometry
from rewire.kernels.library import native
from rewire.kernels.memory import empty_strided
from rewire.kernels.plan_cache import cached_plan
from rewire.kernels.threads import thread_count

TOKEN_TYPES = (torch.float32, torch.bfloat16)  # of activations


def linear_tokens(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    bias: Tensor | None,
    shape: tuple[int, int],
    inputs_first: bool = False,
    activation: Activation = IDENTITY,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """``activation(x @ weight.t() + bias)`` with ``values`` at flat ``positions`` of the weight and zeros elsewhere.

    ``shape``: of the weight, (outputs, inputs), or (inputs, outputs) if ``inputs_first``, which is then not transposed.
    ``dtype``: of the result.
    """
    inputs = shape[0] if inputs_first else shape[1]
    if x.shape[-1] != inputs:
        raise ValueError(f"the layer has {inputs} inputs and was given {tuple(x.shape)}")
    layer = (values, positions, bias, shape, inputs_first, activation, dtype)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, values, bias)):
        y: Tensor = _LinearTokens.apply(x, *layer)
        return y
    return _forward(x, *layer, keep=False)[0]


class _LinearTokens(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        values: Tensor,
        positions: Tensor,
        bias: Tensor | None,
        shape: tuple[int, int],
        inputs_first: bool,
        activation: Activation,
        dtype: torch.dtype,
    ) -> Tensor:
        keep = activation is not IDENTITY and not activation.reads_output
        y, before = _forward(x, values, positions, bias, shape, inputs_first, activation, dtype, keep)
        ctx.shape, ctx.inputs_first, ctx.activation = shape, inputs_first, activation
        ctx.save_for_backward(x, values, positions, y if activation.reads_output else before)
        return y

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, values, positions, saved = ctx.saved_tensors
        needed = ctx.needs_input_grad
        flags = (needed[0], needed[1], needed[3])
        both = _backward(grads[0], x, values, positions, saved, ctx.shape, ctx.inputs_first, ctx.activation, flags)
        return both[0], both[1], None, both[2], None, None, None, None


def _forward(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    bias: Tensor | None,
    shape: tuple[int, int],
    inputs_first: bool,
    activation: Activation,
    dtype: torch.dtype,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    """The output, and what the activation function was applied to if ``keep``."""
    tokens, plan = _rows(x), _plan(shape, inputs_first, positions)
    out_shape = (*x.shape[:-1], plan.csr.outputs.rows)
    y = _empty(out_shape, dtype)
    before = _empty(out_shape, dtype) if keep else None
    values = values.contiguous() if plan.order is None else values[plan.order]
    if y.numel():
        native().rewire_linear_tokens_forward(
            plan.csr, tokens.data_ptr(), tokens.stride(0), _is_bfloat16(x), values.data_ptr(), address(bias),
            y.data_ptr(), address(before), _is_bfloat16(y), len(tokens), int(activation.kind), activation.limit,
            thread_count(),
        )  # fmt: skip
    return y, before


def _backward(
    grad: Tensor,
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    saved: Tensor | None,
    shape: tuple[int, int],
    inputs_first: bool,
    activation: Activation,
    needed: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of ``x``, of ``values`` and of the bias; ``None`` where ``needed`` is false."""
    tokens, grads, plan = _rows(x), _rows(grad), _plan(shape, inputs_first, positions)
    grad_x = _empty(x.shape, x.dtype) if needed[0] else None
    grad_values = torch.zeros(values.shape, dtype=torch.float32) if needed[1] else None
    grad_bias = torch.zeros(plan.csr.outputs.rows, dtype=torch.float32) if needed[2] else None
    values = values.contiguous() if plan.order is None else values[plan.order]
    if len(tokens):
        native().rewire_linear_tokens_backward(
            plan.csr, tokens.data_ptr(), tokens.stride(0), _is_bfloat16(x), grads.data_ptr(), grads.stride(0),
            address(saved), _is_bfloat16(grad), values.data_ptr(), address(grad_x), address(grad_values),
            address(grad_bias), len(tokens), int(activation.kind), activation.limit, thread_count(),
        )  # fmt: skip
    if plan.order is not None and grad_values is not None:
        grad_values = torch.empty_like(grad_values).index_copy_(0, plan.order, grad_values)
    return grad_x, grad_values, grad_bias


def _plan(shape: tuple[int, int], inputs_first: bool, positions: Tensor) -> LinearPlan:
    return cached_plan(InputsFirstPlan if inputs_first else LinearPlan, Geometry((*shape, 1, 1)), positions, 1, 1)


def _rows(x: Tensor) -> Tensor:
    """A matrix whose rows are tokens, with contiguous features: a view unless the memory of ``x`` has another order."""
    rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    return rows if rows.stride(1) == 1 or rows.numel() == 0 else rows.contiguous()


def _is_bfloat16(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised contiguous tensor, from the pool."""
    strides = [1]
    for size in shape[:0:-1]:
        strides.insert(0, strides[0] * size)
    return empty_strided(torch.empty(0, dtype=dtype), shape, strides)
