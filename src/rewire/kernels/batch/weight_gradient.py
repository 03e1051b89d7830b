"""The gradient of a dense weight from a layer's input and output gradient, some output channels at a time.

Used at inactive positions, by rewirings only. Each class below is one way to compute it: ``rows(channels)`` returns the
gradient of the weights of a slice of output channels, flat and in the order of their positions.
"""

import math
from typing import Protocol

import torch
from torch import Tensor

from rewire.kernels.batch.winograd import WinogradGradient
from rewire.kernels.eligibility import runs_native
from rewire.kernels.geometry import Geometry, Pair, to_hwcn
from rewire.kernels.memory import POOL

COLUMN_BYTES = 1 << 26  # memory for what the taps read, if more than one fits in


class WeightGradient(Protocol):
    """The gradient of one layer's dense weight."""

    def rows(self, channels: slice) -> Tensor:
        """Of the weights of these output channels: whole groups, or channels of one group."""


def weight_gradient(x: Tensor, grad: Tensor, geometry: Geometry) -> WeightGradient:
    """The fastest way for this layer: ``x`` is its input and ``grad`` the gradient of its output, both N, C, H, W."""
    if geometry.groups == geometry.taps == 1 and geometry.padding == (0, 0) and x.shape[2:] == (1, 1):
        return LinearGradient(x, grad)
    if geometry.groups > 1 or not runs_native(x, grad):
        return TorchGradient(x, grad, geometry)
    if WinogradGradient.pays(x, geometry):
        return WinogradGradient(x, grad, geometry)
    return TapGradient(x, grad, geometry)


class LinearGradient:
    """One matrix product."""

    def __init__(self, x: Tensor, grad: Tensor) -> None:
        self._x, self._grad = x.flatten(1), grad.flatten(1)

    def rows(self, channels: slice) -> Tensor:
        """The product of output gradients and inputs, summed over the batch."""
        return (self._grad[:, channels].t() @ self._x).reshape(-1)


class TapGradient:
    """A matrix product for each tap, or for several at once: of output gradients and the pixels that the tap reads."""

    def __init__(self, x: Tensor, grad: Tensor, geometry: Geometry) -> None:
        self._geometry, self._out = geometry, grad.shape[2:]
        self._x = _padded(to_hwcn(x), geometry.padding)
        batch, outputs, height, width = grad.shape
        self._grad = _pooled(outputs, height * width * batch)
        self._grad.view(outputs, height, width, batch).copy_(grad.permute(1, 2, 3, 0))

    def rows(self, channels: slice) -> Tensor:
        """Tap by tap."""
        inputs, taps = self._geometry.shape[1], self._geometry.taps
        grad = self._grad[channels]
        result = grad.new_empty(len(grad), inputs, taps)
        together = min(max(COLUMN_BYTES // (4 * inputs * max(grad.shape[1], 1)), 1), taps)
        columns = _pooled(together, inputs, grad.shape[1])  # what the taps read: [taps, in channels, pixels * batch]
        for first in range(0, taps, together):
            some = range(first, min(first + together, taps))
            for place, tap in enumerate(some):
                self._copy_inputs(tap, columns[place])
            products = grad @ columns[: len(some)].flatten(0, 1).t()
            result[:, :, first : some.stop] = products.view(len(grad), len(some), inputs).transpose(1, 2)
        return result.view(-1)

    def _copy_inputs(self, tap: int, to: Tensor) -> None:
        """Write what a tap reads to [in channels, pixels * batch]."""
        (height, width), (stride_y, stride_x) = self._out, self._geometry.stride
        row, column = divmod(tap, self._geometry.shape[3])
        top, left = row * self._geometry.dilation[0], column * self._geometry.dilation[1]
        rows = slice(top, top + (height - 1) * stride_y + 1, stride_y)
        columns = slice(left, left + (width - 1) * stride_x + 1, stride_x)
        to.view(len(to), height, width, -1).copy_(self._x[rows, columns].permute(2, 0, 1, 3))


class TorchGradient:
    """What torch computes: for groups, and for tensors that the native kernels do not take."""

    def __init__(self, x: Tensor, grad: Tensor, geometry: Geometry) -> None:
        self._x, self._grad, self._geometry = x, grad, geometry

    def rows(self, channels: slice) -> Tensor:
        """The gradient of a convolution with these output channels."""
        geometry = self._geometry
        inputs, outputs = geometry.shape[1], geometry.shape[0] // geometry.groups
        first, last = channels.start // outputs, -(-channels.stop // outputs)  # groups
        weight = self._x.new_empty(channels.stop - channels.start, *geometry.shape[1:])
        gradients = torch.ops.aten.convolution_backward(
            *(self._grad[:, channels].contiguous(), self._x[:, first * inputs : last * inputs].contiguous(), weight),
            *(None, geometry.stride, geometry.padding, geometry.dilation, False, [0, 0], last - first),
            [False, True, False],
        )
        grad_weight: Tensor = gradients[1]
        return grad_weight.reshape(-1)


def _padded(x: Tensor, padding: Pair) -> Tensor:
    """An HWCN tensor with zeros around its pixels."""
    if padding == (0, 0):
        return x
    (pad_y, pad_x), (height, width, channels, batch) = padding, x.shape
    padded = _pooled(height + 2 * pad_y, width + 2 * pad_x, channels, batch).zero_()
    padded[pad_y : pad_y + height, pad_x : pad_x + width] = x
    return padded


def _pooled(*shape: int) -> Tensor:
    """Uninitialised float32 memory that was in use before: fresh pages cost as much time as the products."""
    return POOL.empty(math.prod(shape)).view(shape)
