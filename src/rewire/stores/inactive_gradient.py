"""The gradient of a dense weight from the inputs and output gradients of a step: in tiles, or at some positions.

It never exists whole.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rewire.kernels.batch.conv import backward
from rewire.kernels.batch.weight_gradient import weight_gradient
from rewire.kernels.geometry import Geometry

TILE = 1 << 20  # weights whose gradient is in memory at once

Pairs = Sequence[tuple[Tensor, Tensor]]  # inputs of a layer with the gradients of their outputs


def gradient_tiles(
    pairs: Pairs, geometry: Geometry, size: int, dense_gradients: Sequence[Tensor] = ()
) -> Iterator[tuple[int, Tensor]]:
    """The gradient of a dense weight in row-major pieces of about ``size``, each with its first position.

    It is the sum over all pairs of an input and an output gradient, and over ``dense_gradients``, which come from code
    that read the weight as a dense tensor. Pieces are whole outputs: of several whole groups, or some of one group that
    is larger than a piece. Without any gradient there are no pieces.
    """
    if not pairs and not dense_gradients:
        return
    row = geometry.shape[1] * geometry.taps
    products = [weight_gradient(x, grad, geometry) for x, grad in pairs]
    for rows in row_tiles(geometry, size):
        parts = [product.rows(rows) for product in products]
        parts += [dense.reshape(geometry.shape[0], -1)[rows].reshape(-1) for dense in dense_gradients]
        tile = parts[0] if products else parts[0].clone()
        for part in parts[1:]:
            tile.add_(part)
        yield rows.start * row, tile


def row_tiles(geometry: Geometry, size: int) -> Iterator[slice]:
    """Ranges of output channels that have about ``size`` weights each: whole groups, or some of one group."""
    row = geometry.shape[1] * geometry.taps
    group = geometry.shape[0] // geometry.groups
    together = max(size // (group * row), 1) * group  # the outputs of as many groups as a tile can hold
    step = min(together, max(size // row, 1))
    for first in range(0, geometry.shape[0], together):
        last = min(first + together, geometry.shape[0])
        for begin in range(first, last, step):
            yield slice(begin, min(begin + step, last))


def add_gradient_at(
    total: Tensor, positions: Tensor, pairs: Pairs, geometry: Geometry, dense_gradients: Sequence[Tensor] = ()
) -> None:
    """Add the gradient at sorted flat positions, computed there alone, as for weights that exist."""
    for x, grad in pairs:
        _, part = backward(grad, x, torch.zeros_like(total), positions, geometry, (False, True))
        assert part is not None
        total += part
    for dense in dense_gradients:
        total += dense.reshape(-1)[positions]
