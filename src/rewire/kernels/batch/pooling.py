"""Pooling as operators that keep the batch innermost; their plain twins are torch's own functions."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from rewire.kernels.geometry import batch_innermost
from rewire.kernels.library import native
from rewire.kernels.memory import empty_map


class _Window(ctypes.Structure):
    """The C structure ``Window`` (native/pool.cpp)."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("height", "width", "out_height", "out_width")),
        *((name, ctypes.c_int32) for name in ("kernel_y", "kernel_x", "stride_y", "stride_x", "pad_y", "pad_x")),
        ("line", ctypes.c_int64),
    )


def _library() -> ctypes.CDLL:
    library = native()
    assert library is not None, "the caller asks is_fast() first"
    return library


def _window(x: Tensor, window: list[int]) -> _Window:
    """``window``: kernel, stride and padding, each for height and width."""
    size = _pooled(x, window)
    return _Window(x.shape[2], x.shape[3], *size, *window, x.shape[0] * x.shape[1])


def _pooled(x: Tensor, window: list[int]) -> tuple[int, int]:
    (a, b), (c, d), (e, f) = window[:2], window[2:4], window[4:]
    return (x.shape[2] + 2 * e - a) // c + 1, (x.shape[3] + 2 * f - b) // d + 1


@torch.library.custom_op("rewire::max_pool2d", mutates_args=())
def max_pool2d(x: Tensor, window: list[int]) -> Tensor:
    """The largest under each window; padding never counts."""
    inside, shape = batch_innermost(x), _window(x, window)
    y = empty_map(x, x.shape[0], x.shape[1], *_pooled(x, window))
    _library().rewire_max_pool(ctypes.addressof(shape), inside.data_ptr(), y.data_ptr(), torch.get_num_threads())
    return y


@torch.library.custom_op("rewire::max_pool2d_backward", mutates_args=())
def max_pool2d_backward(grad: Tensor, x: Tensor, window: list[int]) -> Tensor:
    """The gradient goes to the first of the largest."""
    inside, above, shape = batch_innermost(x), batch_innermost(grad), _window(x, window)
    grad_x = empty_map(x, *x.shape).zero_()
    pointers = (inside.data_ptr(), above.data_ptr(), grad_x.data_ptr())
    _library().rewire_max_pool_backward(ctypes.addressof(shape), *pointers, torch.get_num_threads())
    return grad_x


def _scale(x: Tensor, window: list[int], padding_counts: bool) -> Tensor:
    """One over the number of pixels that an average counts, for each pixel written."""
    sizes = []
    for axis in (0, 1):
        kernel, stride, pad, size = window[axis], window[2 + axis], window[4 + axis], x.shape[2 + axis]
        begin = torch.arange(_pooled(x, window)[axis]) * stride - pad
        inside = torch.clamp(begin + kernel, max=size) - begin.clamp(min=0)
        sizes.append(torch.full_like(inside, kernel) if padding_counts else inside)
    return 1.0 / (sizes[0][:, None] * sizes[1][None, :]).float()


@torch.library.custom_op("rewire::avg_pool2d", mutates_args=())
def avg_pool2d(x: Tensor, window: list[int], padding_counts: bool) -> Tensor:
    """The mean under each window."""
    inside, shape, scale = batch_innermost(x), _window(x, window), _scale(x, window, padding_counts)
    y = empty_map(x, x.shape[0], x.shape[1], *_pooled(x, window))
    pointers = (inside.data_ptr(), scale.data_ptr(), y.data_ptr())
    _library().rewire_average_pool(ctypes.addressof(shape), *pointers, torch.get_num_threads())
    return y


@torch.library.custom_op("rewire::avg_pool2d_backward", mutates_args=())
def avg_pool2d_backward(grad: Tensor, x: Tensor, window: list[int], padding_counts: bool) -> Tensor:
    """The gradient, shared out equally."""
    above, shape, scale = batch_innermost(grad), _window(x, window), _scale(x, window, padding_counts)
    grad_x = empty_map(x, *x.shape).zero_()
    pointers = (above.data_ptr(), scale.data_ptr(), grad_x.data_ptr())
    _library().rewire_average_pool_backward(ctypes.addressof(shape), *pointers, torch.get_num_threads())
    return grad_x


@max_pool2d.register_fake
def _(x: Tensor, window: list[int]) -> Tensor:
    return empty_map(x, x.shape[0], x.shape[1], *_pooled(x, window))


@avg_pool2d.register_fake
def _(x: Tensor, window: list[int], padding_counts: bool) -> Tensor:
    return empty_map(x, x.shape[0], x.shape[1], *_pooled(x, window))


@max_pool2d_backward.register_fake
def _(grad: Tensor, x: Tensor, window: list[int]) -> Tensor:
    return empty_map(x, *x.shape)


@avg_pool2d_backward.register_fake
def _(grad: Tensor, x: Tensor, window: list[int], padding_counts: bool) -> Tensor:
    return empty_map(x, *x.shape)


def _pool_remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.options = inputs[1:]


def _max_gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return max_pool2d_backward(grad, ctx.saved_tensors[0], *ctx.options), None


def _average_gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return avg_pool2d_backward(grad, ctx.saved_tensors[0], *ctx.options), None, None


max_pool2d.register_autograd(_max_gradients, setup_context=_pool_remember)
avg_pool2d.register_autograd(_average_gradients, setup_context=_pool_remember)
