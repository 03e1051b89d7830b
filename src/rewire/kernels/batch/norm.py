"""Batch norm with the ReLU that follows it, and ReLU alone, with the batch innermost. The twins are torch's own."""

import ctypes
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rewire.kernels.geometry import batch_innermost
from rewire.kernels.library import native
from rewire.kernels.memory import empty_like, empty_map

Moments = tuple[Tensor, Tensor]  # mean and (biased) variance of every channel


def _library() -> ctypes.CDLL:
    library = native()
    assert library is not None, "the caller asks is_fast() first"
    return library


def _sizes(x: Tensor) -> tuple[int, int, int]:
    """Pixels, channels and batch."""
    return x.shape[2] * x.shape[3], x.shape[1], x.shape[0]


def moments(x: Tensor) -> Moments:
    """The mean and the variance of every channel."""
    inside, mean, variance = batch_innermost(x), x.new_empty(x.shape[1]), x.new_empty(x.shape[1])
    threads = torch.get_num_threads()
    _library().rewire_moments(inside.data_ptr(), *_sizes(x), mean.data_ptr(), variance.data_ptr(), threads)
    return mean, variance


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, found: Moments, eps: float, limit: float, pool: bool = False
) -> Tensor:
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, then clamped to [0, limit] unless that is below zero.

    ``pool``: and then the largest of every 2x2 pixels; height and width must be even.
    """
    inside, (scale, shift) = batch_innermost(x), _line(weight, bias, found, eps)
    height, width, channels, batch = _halved(x)
    y = empty_map(x, batch, channels, height, width) if pool else empty_map(x, *x.shape)
    library = _library()
    run, sizes = (library.rewire_norm_pool, _halved(x)) if pool else (library.rewire_scale, _sizes(x))
    line = (scale.data_ptr(), shift.data_ptr())
    run(inside.data_ptr(), *sizes, *line, limit >= 0, limit, y.data_ptr(), torch.get_num_threads())
    return y


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, found: Moments, eps: float, limit: float, pool: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of ``x``, ``weight`` and ``bias``."""
    inside, above, threads = batch_innermost(x), batch_innermost(grad), torch.get_num_threads()
    mean, variance = found
    scale, shift = _line(weight, bias, found, eps)
    library = _library()
    sums, of_input = (
        (library.rewire_norm_pool_sums, library.rewire_norm_pool_input)
        if pool
        else (library.rewire_norm_sums, library.rewire_norm_input)
    )
    shared = (*(_halved(x) if pool else _sizes(x)), scale.data_ptr(), shift.data_ptr(), limit >= 0, limit)
    total, product = torch.empty_like(mean), torch.empty_like(mean)
    sums(inside.data_ptr(), above.data_ptr(), mean.data_ptr(), *shared, total.data_ptr(), product.data_ptr(), threads)
    count = x.numel() / x.shape[1]
    deviation = (variance + eps).rsqrt()
    # grad_x = scale * (grad - mean(grad) - (x - mean) * mean(grad * (x - mean)) / variance)
    b = -scale * product * deviation.square() / count
    d = -scale * total / count - b * mean
    grad_x = empty_map(x, *x.shape)
    of_input(inside.data_ptr(), above.data_ptr(), *shared, *(t.data_ptr() for t in (scale, b, d, grad_x)), threads)
    return grad_x, product * deviation, total


def _halved(x: Tensor) -> tuple[int, int, int, int]:
    """Height and width after pooling, channels and batch."""
    return x.shape[2] // 2, x.shape[3] // 2, x.shape[1], x.shape[0]


def _line(weight: Tensor, bias: Tensor, found: Moments, eps: float) -> tuple[Tensor, Tensor]:
    scale = weight * (found[1] + eps).rsqrt()
    return scale, bias - found[0] * scale


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, found: Moments, eps: float, limit: float, pool: bool
    ) -> Tensor:
        ctx.options = eps, limit, pool
        ctx.save_for_backward(x, weight, bias, *found)
        return forward(x, weight, bias, found, eps, limit, pool)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, weight, bias, mean, variance = ctx.saved_tensors
        found = backward(grads[0], x, weight, bias, (mean, variance), *ctx.options)
        return (*found, None, None, None, None)


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    limit: float = -1.0,
    found: Moments | None = None,
    pool: bool = False,
) -> tuple[Tensor, Moments]:
    """Batch norm over the batch itself, eagerly; ``found``: its moments, where they are known already."""
    found = found or moments(x.detach())
    y: Tensor = _Norm.apply(x, weight, bias, found, eps, limit, pool)
    return y, found


def activate(x: Tensor, other: Tensor | None, limit: float) -> Tensor:
    """``x + other``, clamped to [0, limit] unless that is below zero; both with the same strides and no gaps."""
    y = empty_like(x, x.shape, x.stride())
    added = None if other is None else other.data_ptr()
    _library().rewire_activate(x.data_ptr(), added, x.numel(), limit >= 0, limit, y.data_ptr(), torch.get_num_threads())
    return y


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float) -> Tensor:
        y = activate(x, None, limit)
        ctx.limit = limit
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return behind_relu(grads[0], ctx.saved_tensors[0], ctx.limit), None


def behind_relu(grad: Tensor, y: Tensor, limit: float) -> Tensor:
    """The gradient before the ReLU that made ``y``, with the strides of ``y``, whose memory has no gaps."""
    if grad.stride() != y.stride():
        grad = torch.empty_like(y).copy_(grad)
    grad_x = empty_like(y, y.shape, y.stride())
    _library().rewire_activate_backward(
        y.data_ptr(), grad.data_ptr(), y.numel(), limit, grad_x.data_ptr(), torch.get_num_threads()
    )
    return grad_x


def relu(x: Tensor, limit: float = math.inf) -> Tensor:
    """``x`` clamped to [0, limit], eagerly, for a dense float32 tensor with any order of its dimensions."""
    y: Tensor = _Relu.apply(x, limit)
    return y


@torch.library.custom_op("rewire::batch_norm", mutates_args=())
def operator(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm, registered: the output, the mean and the variance."""
    found = moments(x)
    return forward(x, weight, bias, found, eps, -1.0), *found


@operator.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return empty_map(x, *x.shape), torch.empty_like(weight), torch.empty_like(weight)


@torch.library.custom_op("rewire::batch_norm_backward", mutates_args=())
def backward_operator(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of ``x``, ``weight`` and ``bias``, registered."""
    return backward(grad, x, weight, bias, (mean, variance), eps, -1.0)


@backward_operator.register_fake
def _(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return empty_map(x, *x.shape), torch.empty_like(weight), torch.empty_like(weight)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias, ctx.eps = inputs
    ctx.save_for_backward(x, weight, bias, output[1], output[2])
    ctx.mark_non_differentiable(output[1], output[2])


def _gradients(ctx: Any, grad: Tensor, _mean: Tensor, _variance: Tensor) -> tuple[Any, ...]:
    return (*backward_operator(grad, *ctx.saved_tensors, ctx.eps), None)


operator.register_autograd(_gradients, setup_context=_remember)
