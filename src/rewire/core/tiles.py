"""Tiles: a weight cut into equal boxes, such as blocks of a matrix, and what can be asked about them."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from rewire.core.topology import ScoredPositions


class Tiles:
    """The boxes of one weight, numbered row by row; ``size`` positions each.

    ``matrix``: the shape of the weight as rows, columns and taps. ``box``: that of a tile, which divides it.
    ``span``: the flat positions that this process holds, if not all; it cuts no tile. What is computed for each tile
    is computed for the ``count`` tiles from tile ``first`` on, those of the span; ``in_all`` are those of the weight.

    >>> tiles = Tiles((2, 4, 1), (2, 2, 1))
    >>> tiles.of(torch.arange(8))
    tensor([0, 0, 1, 1, 0, 0, 1, 1])
    >>> tiles.positions(torch.tensor([1]))
    tensor([2, 3, 6, 7])
    """

    def __init__(self, matrix: Sequence[int], box: Sequence[int], span: range | None = None) -> None:
        self._matrix, self._box = tuple(matrix), tuple(box)
        self._columns, self._taps = self._matrix[1:]
        self._grid = tuple(length // side for length, side in zip(matrix, box, strict=True))
        self.size, self.in_all = prod(self._box), prod(self._grid)
        self._span = range(prod(self._matrix)) if span is None else span
        self.first, self.count = self._span.start // self.size, len(self._span) // self.size

    def fits(self, span: range) -> bool:
        """Whether a range of flat positions cuts no tile: it begins and ends between two rows of tiles."""
        band = self._box[0] * self._columns * self._taps
        return span.start % band == 0 and span.stop % band == 0

    def within(self, span: range) -> "Tiles":
        """The tiles of a range of positions that cuts none.

        >>> tiles = Tiles((4, 2, 1), (2, 2, 1)).within(range(4, 8))
        >>> tiles.first, tiles.counts(torch.tensor([4, 5, 7]))
        (1, tensor([3]))
        """
        assert self.fits(span), f"{span} cuts tiles of {self._box} in {self._matrix}"
        return Tiles(self._matrix, self._box, span)

    def of(self, positions: Tensor) -> Tensor:
        """The tile of each flat position."""
        tap, column = positions % self._taps, positions // self._taps % self._columns
        row = positions // (self._taps * self._columns)
        height, width, depth = self._box
        return ((row // height) * self._grid[1] + column // width) * self._grid[2] + tap // depth

    def positions(self, tiles: Tensor) -> Tensor:
        """All flat positions of some tiles, sorted."""
        height, width, depth = self._box
        tap, column = tiles % self._grid[2], tiles // self._grid[2] % self._grid[1]
        row = tiles // (self._grid[2] * self._grid[1])
        device = tiles.device
        rows = (row * height)[:, None, None, None] + torch.arange(height, device=device)[:, None, None]
        columns = (column * width)[:, None, None, None] + torch.arange(width, device=device)[:, None]
        taps = (tap * depth)[:, None, None, None] + torch.arange(depth, device=device)
        return ((rows * self._columns + columns) * self._taps + taps).flatten().sort().values

    def counts(self, positions: Tensor) -> Tensor:
        """How many of the positions each tile has."""
        return torch.bincount(self.of(positions) - self.first, minlength=self.count)

    def means(self, values: Tensor, positions: Tensor) -> Tensor:
        """The mean of the values at distinct positions over each tile; what is not among them counts as zero.

        A dense sum, in an order that does not depend on the device: every rank gets the same numbers.
        """
        dense = torch.zeros(len(self._span), dtype=torch.float64, device=values.device)
        dense[positions - self._span.start] = values.double()
        (height, width, depth), (_, columns, taps) = self._box, self._grid
        rows = self.count // (columns * taps)
        boxes = dense.view(rows, height, columns, width, taps, depth).permute(0, 2, 4, 1, 3, 5)
        return boxes.reshape(self.count, self.size).sum(1) / self.size

    def largest(self, top: ScoredPositions, limits: Tensor) -> ScoredPositions:
        """Of each tile as many of the largest values as its limit; of equal ones the first.

        >>> values, positions = torch.tensor([3.0, 1.0, 2.0, 5.0]), torch.tensor([0, 1, 2, 3])
        >>> Tiles((1, 4, 1), (1, 2, 1)).largest(ScoredPositions(values, positions), torch.tensor([1, 1])).positions
        tensor([0, 3])
        """
        tile = self.of(top.positions) - self.first
        order = torch.sort(top.values, descending=True, stable=True).indices
        order = order[torch.sort(tile[order], stable=True).indices]  # by tile, and within it from the largest on
        ordered = tile[order]
        first = torch.searchsorted(ordered, torch.arange(self.count, device=tile.device))
        rank = torch.arange(len(order), device=tile.device) - first[ordered]
        kept = torch.zeros(len(order), dtype=torch.bool, device=tile.device)
        kept[order[rank < limits[ordered]]] = True
        return top.where(kept)
