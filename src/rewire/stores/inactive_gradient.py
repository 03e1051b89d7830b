"""The gradient of a dense weight from the inputs and output gradients of a step, in tiles: it never exists whole."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rewire.kernels.geometry import Geometry

TILE = 1 << 20  # weights whose gradient is in memory at once


def gradient_tiles(
    pairs: Sequence[tuple[Tensor, Tensor]], geometry: Geometry, size: int, dense_gradients: Sequence[Tensor] = ()
) -> Iterator[tuple[int, Tensor]]:
    """The gradient of a dense weight in row-major pieces of about ``size``.

    It is the sum over all pairs of an input and an output gradient, and over ``dense_gradients``, which come from code
    that read the weight as a dense tensor. Pieces are whole outputs: of several whole groups, or some of one group that
    is larger than a piece. Without any gradient there are no pieces.
    """
    if not pairs and not dense_gradients:
        return
    row = geometry.shape[1] * geometry.taps
    group = geometry.shape[0] // geometry.groups
    together = max(size // (group * row), 1) * group  # the outputs of as many groups as a piece can hold
    step = min(together, max(size // row, 1))
    for first in range(0, geometry.shape[0], together):
        last = min(first + together, geometry.shape[0])
        columns = slice(first // group * geometry.shape[1], last // group * geometry.shape[1])
        for begin in range(first, last, step):
            rows = slice(begin, min(begin + step, last))
            total: Tensor | None = None
            for x, grad in pairs:
                part = _rows_gradient(x, grad, geometry, rows, columns).reshape(-1)
                total = part if total is None else total.add_(part)
            for dense in dense_gradients:
                part = dense.reshape(geometry.shape[0], -1)[rows].reshape(-1)
                total = part.clone() if total is None else total.add_(part)
            assert total is not None
            yield begin * row, total


def _rows_gradient(x: Tensor, grad: Tensor, geometry: Geometry, rows: slice, columns: slice) -> Tensor:
    if grad.shape[2:] == x.shape[2:] == (1, 1) and geometry.groups == geometry.taps == 1:  # a linear layer
        return grad.flatten(1)[:, rows].t() @ x.flatten(1)
    weight = x.new_empty(rows.stop - rows.start, *geometry.shape[1:])
    groups = (columns.stop - columns.start) // geometry.shape[1]
    found: Tensor = torch.ops.aten.convolution_backward(
        *(grad[:, rows].contiguous(), x[:, columns].contiguous(), weight, None, geometry.stride, geometry.padding),
        *(geometry.dilation, False, [0, 0], groups, [False, True, False]),
    )[1]
    return found
