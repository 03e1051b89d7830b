"""Views of a layer under a constraint: a layer of whole tiles, and a layer whose tiles have limits."""

import copy

import torch
from torch import Tensor

from rewire.core.layer import Context, Layer, numel
from rewire.core.score import AnySignal
from rewire.core.tiles import Tiles
from rewire.core.topology import ScoredPositions, insert
from rewire.core.views import Declares, Edited, PartView


class TileLayer:
    """A layer whose tiles exist as a whole, seen as a layer of tiles: a position is a tile, and a count counts tiles.

    The signal of a tile is the mean of ``|signal|`` over its weights.
    """

    def __init__(self, base: Layer, tiles: Tiles) -> None:
        self.base, self.tiles = base, tiles
        self.name, self.frozen = base.name, base.frozen
        self.shape, self.span = torch.Size([tiles.count]), range(tiles.count)
        self.nnz = base.nnz // tiles.size

    def active(self) -> Tensor:
        """The tiles that exist."""
        tiles: Tensor = torch.unique(self.tiles.of(self.base.active()))
        return tiles

    def read(self, signal: AnySignal) -> Tensor:
        """The mean magnitude of the signal over each tile that exists."""
        return self.tiles.means(self.base.read(signal).abs(), self.base.active())[self.active()]

    def read_at(self, signal: AnySignal, positions: Tensor) -> Tensor:
        """The mean magnitude of the signal over some tiles that do not exist."""
        weights = self.tiles.positions(positions)
        return self.tiles.means(self.base.read_at(signal, weights).abs(), weights)[positions]

    def top_inactive(self, signal: AnySignal, k: int, floor: float = 0.0) -> ScoredPositions:
        """The ``k`` missing tiles of largest mean ``|signal|``, of those at or above ``floor`` and not zero."""
        inactive = self.base.top_inactive(signal, numel(self.base))
        means = self.tiles.means(inactive.values, inactive.positions)
        tiles = ((means >= floor) & (means > 0)).nonzero().squeeze(1)
        return ScoredPositions(means[tiles], tiles).largest(k)


class LimitedEdited(Edited):
    """A layer after the drop, in which each tile may have so many weights at most: ``limits``, one for each tile."""

    def __init__(self, edited: Edited, tiles: Tiles, limits: Tensor) -> None:
        super().__init__(edited.base, edited.drop, edited.index, edited.regrow, edited.lost)
        self.tiles = tiles
        free = tiles.size - tiles.counts(self.occupied())
        self.capacity = torch.minimum(limits - tiles.counts(self.active()), free).clamp(min=0)  # of each tile

    @property
    def room(self) -> int:
        """How many weights can be grown."""
        return 0 if self.frozen else int(self.capacity.sum())

    def read_by(self, part: Declares, limit: int | None = None) -> "Edited":
        """The same view for one part. It may rank all inactive positions: the largest may be in tiles that are full."""
        self.active()
        view = copy.copy(self)
        view.base = PartView(self.base, part)
        return view

    def top_inactive(self, signal: AnySignal, k: int, floor: float = 0.0) -> ScoredPositions:
        """The ``k`` candidates of largest ``|signal|`` that can be grown together."""
        return self.admissible(super().top_inactive(signal, numel(self), floor)).largest(k)

    def admissible(self, candidates: ScoredPositions) -> ScoredPositions:
        """Of each tile the largest candidates, as many as it can get."""
        return self.tiles.largest(candidates, self.capacity)

    def occupied_beside(self, chosen: Tensor, ctx: Context) -> Tensor:
        """All but a random choice of as many free positions of each tile as it can get besides the chosen ones."""
        taken = insert(chosen, self.occupied())
        free = torch.ones(numel(self), dtype=torch.bool)
        free[taken.cpu()] = False
        positions = free.nonzero().squeeze(1)
        keys = torch.rand(len(positions), generator=ctx.generator("open", self.index), dtype=torch.float64)
        left = (self.capacity - self.tiles.counts(chosen)).cpu()
        free[self.tiles.largest(ScoredPositions(keys, positions), left).positions] = False  # these are the open ones
        closed = free
        closed[taken.cpu()] = True
        return closed.nonzero().squeeze(1).to(taken.device)
