"""The reference implementation (slow, obviously right): sparse layers in a few lines of torch, for any floating dtype.

Batch norm, pooling and ReLU have torch's own functions as their reference.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from rewire.kernels.geometry import Geometry

MAX_PRODUCTS = 1 << 22  # products in memory at once


def forward(x: Tensor, values: Tensor, positions: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """A convolution whose weight is zero except for ``values`` at flat ``positions``.

    >>> layer = Geometry((2, 3, 1, 1))  # [[0, 2, 0], [0, 0, 3]]
    >>> x = torch.tensor([[1.0, 10.0, 100.0]])[:, :, None, None]
    >>> forward(x, torch.tensor([2.0, 3.0]), torch.tensor([1, 5]), None, layer).flatten()
    tensor([ 20., 300.])
    """
    if _is_linear(x, geometry):
        y: Tensor = torch.sparse.mm(_matrix(values, positions, geometry), x.flatten(1).t()).t()
        return (y if bias is None else y + bias)[:, :, None, None]
    weight = _dense(values, positions, geometry)
    return F.conv2d(x, weight, bias, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)


def backward(
    grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, geometry: Geometry, needed: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of ``x`` and of ``values``; ``None`` where ``needed`` is false."""
    if _is_linear(x, geometry):
        return _linear_backward(grad.flatten(1), x, values, positions, geometry, needed)
    weight = _dense(values, positions, geometry)
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
        *(grad, x, weight, None, geometry.stride, geometry.padding, geometry.dilation, False, [0, 0]),
        *(geometry.groups, [*needed, False]),
    )
    return grad_x, None if grad_weight is None else grad_weight.reshape(-1)[positions]


def _is_linear(x: Tensor, geometry: Geometry) -> bool:
    """Whether the layer is a matrix product, whose dense weight may be too large for memory."""
    return x.shape[2:] == (1, 1) and geometry.taps == 1 and geometry.groups == 1 and geometry.padding == (0, 0)


def _matrix(values: Tensor, positions: Tensor, geometry: Geometry) -> Tensor:
    positions = positions.long()
    indices = torch.stack([positions // geometry.inputs, positions % geometry.inputs])
    return torch.sparse_coo_tensor(indices, values, geometry.shape[:2], check_invariants=False)


def _dense(values: Tensor, positions: Tensor, geometry: Geometry) -> Tensor:
    weight = values.new_zeros(geometry.numel)
    weight[positions] = values
    return weight.view(geometry.shape)


def _linear_backward(
    grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, geometry: Geometry, needed: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    grad_x = grad_values = None
    flat = x.flatten(1)
    if needed[0]:
        grad_x = torch.sparse.mm(_matrix(values, positions, geometry).t(), grad.t()).t()[:, :, None, None]
    if needed[1]:
        chunks = positions.split(max(MAX_PRODUCTS // max(len(flat), 1), 1))
        grad_values = torch.cat([
            (grad[:, chunk // geometry.inputs] * flat[:, chunk % geometry.inputs]).sum(0) for chunk in chunks
        ]) if len(positions) else values.new_zeros(0)  # fmt: skip
    return grad_x, grad_values
