"""Max and average pooling in HWCN layout, as operators registered with torch.

The names of their arguments are part of the registered schema, which exported programs refer to.
"""

from typing import Any

import torch
from torch import Tensor

from rewire.kernels.geometry import Pair, to_hwcn
from rewire.kernels.library import native
from rewire.kernels.memory import empty_hwcn
from rewire.kernels.structures import PoolShape
from rewire.kernels.threads import thread_count

Window = list[int]  # kernel, stride and padding, each for height and width: six integers


@torch.library.custom_op("rewire::max_pool2d", mutates_args=())
def max_pool2d(x: Tensor, window: list[int]) -> Tensor:
    """The largest inside of each window; padding never counts."""
    inputs, y = to_hwcn(x), empty_hwcn(x, x.shape[0], x.shape[1], *_output_size(x, window))
    native().rewire_max_pool(_pool_shape(x, window), inputs.data_ptr(), y.data_ptr(), thread_count())
    return y


@torch.library.custom_op("rewire::max_pool2d_backward", mutates_args=())
def max_pool2d_backward(grad: Tensor, x: Tensor, window: list[int]) -> Tensor:
    """The gradient goes to the largest of a window, of equal ones to the first."""
    inputs, grads, grad_x = to_hwcn(x), to_hwcn(grad), empty_hwcn(x, *x.shape).zero_()
    arrays = (inputs.data_ptr(), grads.data_ptr(), grad_x.data_ptr())
    native().rewire_max_pool_backward(_pool_shape(x, window), *arrays, thread_count())
    return grad_x


@torch.library.custom_op("rewire::avg_pool2d", mutates_args=())
def avg_pool2d(x: Tensor, window: list[int], padding_counts: bool) -> Tensor:
    """The mean of each window."""
    inputs, scale = to_hwcn(x), _scale(x, window, padding_counts)
    y = empty_hwcn(x, x.shape[0], x.shape[1], *_output_size(x, window))
    arrays = (inputs.data_ptr(), scale.data_ptr(), y.data_ptr())
    native().rewire_avg_pool(_pool_shape(x, window), *arrays, thread_count())
    return y


@torch.library.custom_op("rewire::avg_pool2d_backward", mutates_args=())
def avg_pool2d_backward(grad: Tensor, x: Tensor, window: list[int], padding_counts: bool) -> Tensor:
    """The gradient, divided equally over each window."""
    grads, scale, grad_x = to_hwcn(grad), _scale(x, window, padding_counts), empty_hwcn(x, *x.shape).zero_()
    arrays = (grads.data_ptr(), scale.data_ptr(), grad_x.data_ptr())
    native().rewire_avg_pool_backward(_pool_shape(x, window), *arrays, thread_count())
    return grad_x


def _pool_shape(x: Tensor, window: Window) -> PoolShape:
    out_height, out_width = _output_size(x, window)
    kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x = window
    return PoolShape(
        height=x.shape[2], width=x.shape[3], out_height=out_height, out_width=out_width,
        kernel_y=kernel_y, kernel_x=kernel_x, stride_y=stride_y, stride_x=stride_x, pad_y=pad_y, pad_x=pad_x,
        pixel_size=x.shape[0] * x.shape[1],
    )  # fmt: skip


def _output_size(x: Tensor, window: Window) -> Pair:
    kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x = window
    return (x.shape[2] + 2 * pad_y - kernel_y) // stride_y + 1, (x.shape[3] + 2 * pad_x - kernel_x) // stride_x + 1


def _scale(x: Tensor, window: Window, padding_counts: bool) -> Tensor:
    """One over the number of pixels that the average of each output pixel counts."""
    sizes = []
    for axis in (0, 1):
        kernel, stride, pad, size = window[axis], window[2 + axis], window[4 + axis], x.shape[2 + axis]
        begin = torch.arange(_output_size(x, window)[axis]) * stride - pad
        inside = torch.clamp(begin + kernel, max=size) - begin.clamp(min=0)
        sizes.append(torch.full_like(inside, kernel) if padding_counts else inside)
    return 1.0 / (sizes[0][:, None] * sizes[1][None, :]).float()


@max_pool2d.register_fake
def _(x: Tensor, window: list[int]) -> Tensor:
    return empty_hwcn(x, x.shape[0], x.shape[1], *_output_size(x, window))


@avg_pool2d.register_fake
def _(x: Tensor, window: list[int], padding_counts: bool) -> Tensor:
    return empty_hwcn(x, x.shape[0], x.shape[1], *_output_size(x, window))


@max_pool2d_backward.register_fake
def _(grad: Tensor, x: Tensor, window: list[int]) -> Tensor:
    return empty_hwcn(x, *x.shape)


@avg_pool2d_backward.register_fake
def _(grad: Tensor, x: Tensor, window: list[int], padding_counts: bool) -> Tensor:
    return empty_hwcn(x, *x.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.options = inputs[1:]


def _max_gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return max_pool2d_backward(grad, ctx.saved_tensors[0], *ctx.options), None


def _avg_gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return avg_pool2d_backward(grad, ctx.saved_tensors[0], *ctx.options), None, None


max_pool2d.register_autograd(_max_gradients, setup_context=_save)
avg_pool2d.register_autograd(_avg_gradients, setup_context=_save)
