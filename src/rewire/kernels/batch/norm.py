"""Batch norm in HWCN layout, with the ReLU and the 2x2 max pooling that may follow it."""

from typing import Any

import torch
from torch import Tensor

from rewire._torch import differentiable_once
from rewire.kernels.geometry import to_hwcn
from rewire.kernels.library import native
from rewire.kernels.memory import empty_hwcn
from rewire.kernels.threads import thread_count

Moments = tuple[Tensor, Tensor]  # mean and (biased) variance of every channel


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    relu_limit: float = -1.0,
    known: Moments | None = None,
    pool: bool = False,
) -> tuple[Tensor, Moments]:
    """Batch norm over the batch itself, eagerly, and its moments; ``known``: the moments, if they are known already."""
    batch_moments = known or moments(x.detach())
    y: Tensor = _BatchNorm.apply(x, weight, bias, batch_moments, eps, relu_limit, pool)
    return y, batch_moments


def moments(x: Tensor) -> Moments:
    """The mean and the variance of every channel."""
    inputs, mean, variance = to_hwcn(x), x.new_empty(x.shape[1]), x.new_empty(x.shape[1])
    native().rewire_channel_moments(
        inputs.data_ptr(), *_sizes(x), mean.data_ptr(), variance.data_ptr(), thread_count()
    )  # fmt: skip
    return mean, variance


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    known: Moments,
    eps: float,
    relu_limit: float,
    pool: bool = False,
) -> Tensor:
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, then clamped to [0, relu_limit] unless that is below zero.

    ``pool``: then also the largest of every 2x2 pixels; height and width must be even.
    """
    inputs, (scale, shift) = to_hwcn(x), _scale_and_shift(weight, bias, known, eps)
    shared = (scale.data_ptr(), shift.data_ptr(), relu_limit >= 0, relu_limit)
    if pool:
        height, width, channels, batch = _pooled_sizes(x)
        y = empty_hwcn(x, batch, channels, height, width)
        native().rewire_batch_norm_pool(inputs.data_ptr(), *_pooled_sizes(x), *shared, y.data_ptr(), thread_count())
    else:
        y = empty_hwcn(x, *x.shape)
        native().rewire_batch_norm(inputs.data_ptr(), *_sizes(x), *shared, None, y.data_ptr(), thread_count())
    return y


def backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    known: Moments,
    eps: float,
    relu_limit: float,
    pool: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of ``x``, ``weight`` and ``bias``.

    With g the gradient before the ReLU and means over all but the channels:
    grad_x = scale * (g - mean(g) - (x - mean) * mean(g * (x - mean)) / (variance + eps)).
    """
    inputs, grads, (mean, _) = to_hwcn(x), to_hwcn(grad), known
    scale, shift = _scale_and_shift(weight, bias, known, eps)
    library = native()
    sums, grad_input = (
        (library.rewire_batch_norm_pool_grad_sums, library.rewire_batch_norm_pool_grad_input)
        if pool
        else (library.rewire_batch_norm_grad_sums, library.rewire_batch_norm_grad_input)
    )
    sizes = _pooled_sizes(x) if pool else _sizes(x)
    shared = (*sizes, scale.data_ptr(), shift.data_ptr(), relu_limit >= 0, relu_limit)
    total, product = torch.empty_like(mean), torch.empty_like(mean)
    arrays = (inputs.data_ptr(), grads.data_ptr())
    sums(*arrays, mean.data_ptr(), *shared, total.data_ptr(), product.data_ptr(), thread_count())
    grad_weight, x_factor, constant = _factors(scale, known, eps, (total, product), x.numel() // x.shape[1])
    grad_x = empty_hwcn(x, *x.shape)
    factors = (t.data_ptr() for t in (scale, x_factor, constant))
    grad_input(*arrays, *shared, *factors, grad_x.data_ptr(), thread_count())
    return grad_x, grad_weight, total


def _sizes(x: Tensor) -> tuple[int, int, int]:
    """Pixels, channels and batch."""
    return x.shape[2] * x.shape[3], x.shape[1], x.shape[0]


def _pooled_sizes(x: Tensor) -> tuple[int, int, int, int]:
    """Height and width after 2x2 pooling, channels and batch."""
    return x.shape[2] // 2, x.shape[3] // 2, x.shape[1], x.shape[0]


def _scale_and_shift(weight: Tensor, bias: Tensor, known: Moments, eps: float) -> Tensor:
    """Batch norm as ``scale * x + shift``: both in one tensor."""
    line = torch.empty(2, len(weight), dtype=torch.float32, device="cpu")
    arrays = [tensor.contiguous() for tensor in (weight, bias, *known)]
    native().rewire_batch_norm_line(
        *(tensor.data_ptr() for tensor in arrays), eps, len(weight), *(row.data_ptr() for row in line)
    )
    return line


def _factors(
    scale: Tensor, known: Moments, eps: float, sums: tuple[Tensor, Tensor], count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of the weight; the factor of x and the constant in the gradient of x."""
    factors = torch.empty_like(scale), torch.empty_like(scale), torch.empty_like(scale)
    inputs = (scale.data_ptr(), *(t.data_ptr() for t in known), eps, *(t.data_ptr() for t in sums), count, len(scale))
    native().rewire_batch_norm_factors(*inputs, *(factor.data_ptr() for factor in factors))
    return factors


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, known: Moments, eps: float, relu_limit: float, pool: bool
    ) -> Tensor:
        ctx.options = eps, relu_limit, pool
        ctx.save_for_backward(x, weight, bias, *known)
        return forward(x, weight, bias, known, eps, relu_limit, pool)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, weight, bias, mean, variance = ctx.saved_tensors
        gradients = backward(grads[0], x, weight, bias, (mean, variance), *ctx.options)
        return (*gradients, None, None, None, None)


@torch.library.custom_op("rewire::batch_norm", mutates_args=())
def operator(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm, registered with torch: the output, the mean and the variance."""
    known = moments(x)
    return forward(x, weight, bias, known, eps, -1.0), *known


@operator.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return empty_hwcn(x, *x.shape), torch.empty_like(weight), torch.empty_like(weight)


@torch.library.custom_op("rewire::batch_norm_backward", mutates_args=())
def backward_operator(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of ``x``, ``weight`` and ``bias``, registered with torch."""
    return backward(grad, x, weight, bias, (mean, variance), eps, -1.0)


@backward_operator.register_fake
def _(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return empty_hwcn(x, *x.shape), torch.empty_like(weight), torch.empty_like(weight)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias, ctx.eps = inputs
    ctx.save_for_backward(x, weight, bias, output[1], output[2])
    ctx.mark_non_differentiable(output[1], output[2])


def _gradients(ctx: Any, grad: Tensor, _mean: Tensor, _variance: Tensor) -> tuple[Any, ...]:
    return (*backward_operator(grad, *ctx.saved_tensors, ctx.eps), None)


operator.register_autograd(_gradients, setup_context=_save)
