"""The gradient of a dense weight from the inputs and output gradients of a step, in tiles: it never exists whole."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rewire.kernels.geometry import Geometry

TILE = 1 << 20  # weights whose gradient is in memory at once


def gradient_tiles(
    pairs: Sequence[tuple[Tensor, Tensor]], geometry: Geometry, size: int
) -> Iterator[tuple[int, Tensor]]:
    """The gradient of a dense weight in row-major pieces of about ``size``, summed over (input, output gradient) pairs.

    Pieces are whole outputs: of several whole groups, or some of one group that is larger than a piece.
    """
    row = geometry.shape[1] * geometry.taps
    group = geometry.shape[0] // geometry.groups
    together = max(size // (group * row), 1) * group  # the outputs of as many groups as a piece can hold
    step = min(together, max(size // row, 1))
    for first in range(0, geometry.shape[0], together):
        last = min(first + together, geometry.shape[0])
        columns = slice(first // group * geometry.shape[1], last // group * geometry.shape[1])
        for begin in range(first, last, step):
            rows = slice(begin, min(begin + step, last))
            total = _rows_gradient(*pairs[0], geometry, rows, columns)
            for x, grad in pairs[1:]:
                total += _rows_gradient(x, grad, geometry, rows, columns)
            yield begin * row, total.reshape(-1)


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
