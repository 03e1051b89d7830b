"""The plain twins: what every fast kernel must compute, in a few lines of torch, for any floating dtype."""

import torch
import torch.nn.functional as F
from torch import Tensor

from rewire.kernels.geometry import Geometry

CHUNK = 1 << 22  # products held at once


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
    grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, geometry: Geometry, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of ``x`` and of ``values``, those that are wanted."""
    if _is_linear(x, geometry):
        return _linear_backward(grad.flatten(1), x, values, positions, geometry, wanted)
    weight = _dense(values, positions, geometry)
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
        *(grad, x, weight, None, geometry.stride, geometry.padding, geometry.dilation, False, [0, 0]),
        *(geometry.groups, [*wanted, False]),
    )
    return grad_x, None if grad_weight is None else grad_weight.reshape(-1)[positions]


def _is_linear(x: Tensor, geometry: Geometry) -> bool:
    """Whether the layer is a matrix: it can be too large to be written out."""
    return x.shape[2:] == (1, 1) and geometry.taps == 1 and geometry.groups == 1 and geometry.padding == (0, 0)


def _matrix(values: Tensor, positions: Tensor, geometry: Geometry) -> Tensor:
    positions = positions.long()
    where = torch.stack([positions // geometry.inputs, positions % geometry.inputs])
    return torch.sparse_coo_tensor(where, values, geometry.shape[:2], check_invariants=False)


def _dense(values: Tensor, positions: Tensor, geometry: Geometry) -> Tensor:
    weight = values.new_zeros(geometry.numel)
    weight[positions] = values
    return weight.view(geometry.shape)


def _linear_backward(
    grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, geometry: Geometry, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    grad_x = grad_values = None
    flat = x.flatten(1)
    if wanted[0]:
        grad_x = torch.sparse.mm(_matrix(values, positions, geometry).t(), grad.t()).t()[:, :, None, None]
    if wanted[1]:
        pieces = positions.split(max(CHUNK // max(len(flat), 1), 1))
        grad_values = torch.cat([
            (grad[:, one // geometry.inputs] * flat[:, one % geometry.inputs]).sum(0) for one in pieces
        ]) if len(positions) else values.new_zeros(0)  # fmt: skip
    return grad_x, grad_values
