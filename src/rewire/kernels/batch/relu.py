"""ReLU, and sums with a ReLU behind them, in memory from the pool; elementwise, for any layout without gaps."""

import math
from typing import Any

import torch
from torch import Tensor

from rewire._torch import differentiable_once
from rewire.kernels.library import native
from rewire.kernels.memory import empty_strided
from rewire.kernels.threads import thread_count


def relu(x: Tensor, relu_limit: float = math.inf) -> Tensor:
    """``x`` clamped to [0, relu_limit], eagerly, for a float32 tensor without gaps."""
    y: Tensor = _Relu.apply(x, relu_limit)
    return y


def add_relu(x: Tensor, other: Tensor | None, relu_limit: float) -> Tensor:
    """``x + other``, clamped to [0, relu_limit] unless that is below zero; both have equal strides and no gaps."""
    y = empty_strided(x, x.shape, x.stride())
    added = None if other is None else other.data_ptr()
    native().rewire_add_relu(x.data_ptr(), added, x.numel(), relu_limit >= 0, relu_limit, y.data_ptr(), thread_count())
    return y


def relu_backward(grad: Tensor, y: Tensor, relu_limit: float) -> Tensor:
    """The gradient of the input of the ReLU whose output is ``y``, with the strides of ``y``, which has no gaps."""
    if grad.stride() != y.stride():
        grad = torch.empty_like(y).copy_(grad)
    grad_x = empty_strided(y, y.shape, y.stride())
    native().rewire_relu_backward(
        y.data_ptr(), grad.data_ptr(), y.numel(), relu_limit, grad_x.data_ptr(), thread_count()
    )  # fmt: skip
    return grad_x


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, relu_limit: float) -> Tensor:
        y = add_relu(x, None, relu_limit)
        ctx.relu_limit = relu_limit
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return relu_backward(grads[0], ctx.saved_tensors[0], ctx.relu_limit), None
