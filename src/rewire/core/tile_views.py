"""Views of a layer under a constraint: a layer of whole tiles, and a layer whose tiles have limits."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from rewire.core.layer import Context, Layer, numel
from rewire.core.ranks import Ranks, total
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
        self.shape, self.span = torch.Size([tiles.in_all]), range(tiles.first, tiles.first + tiles.count)
        self.nnz = base.nnz // tiles.size

    def active(self) -> Tensor:
        """The tiles that exist."""
        tiles: Tensor = torch.unique(self.tiles.of(self.base.active()))
        return tiles

    def read(self, signal: AnySignal) -> Tensor:
        """The mean magnitude of the signal over each tile that exists."""
        means = self.tiles.means(self.base.read(signal).abs(), self.base.active())
        return means[self.active() - self.tiles.first]

    def read_at(self, signal: AnySignal, positions: Tensor) -> Tensor:
        """The mean magnitude of the signal over some tiles that do not exist."""
        weights = self.tiles.positions(positions)
        return self.tiles.means(self.base.read_at(signal, weights).abs(), weights)[positions - self.tiles.first]

    def top_inactive(self, signal: AnySignal, k: int, floor: float = 0.0) -> ScoredPositions:
        """The ``k`` missing tiles of largest mean ``|signal|``, of those at or above ``floor`` and not zero."""
        inactive = self.base.top_inactive(signal, numel(self.base))
        means = self.tiles.means(inactive.values, inactive.positions)
        tiles = ((means >= floor) & (means > 0)).nonzero().squeeze(1)
        return ScoredPositions(means[tiles], tiles + self.tiles.first).largest(k)


class LimitedEdited(Edited):
    """A layer after the drop, in which each tile may have so many weights at most: ``limits``, one for each tile.

    ``room`` is that of this process until ``limited`` has added that of the other ranks.
    """

    def __init__(self, edited: Edited, tiles: Tiles, limits: Tensor) -> None:
        super().__init__(edited.base, edited.drop, edited.index, edited.regrow, edited.lost)
        self.tiles = tiles
        free = tiles.size - tiles.counts(self.occupied())
        self.capacity = torch.minimum(limits - tiles.counts(self.active()), free).clamp(min=0)  # of each tile
        self.total_capacity = int(self.capacity.sum())

    @property
    def room(self) -> int:
        """How many weights can be grown."""
        return 0 if self.frozen else self.total_capacity

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
        """All but a random choice of as many free positions of each tile as it can get besides the chosen ones.

        Every rank draws for all free positions of the layer and takes those of its own.
        """
        taken = insert(chosen, self.occupied()).cpu() - self.span.start
        free = torch.ones(len(self.span), dtype=torch.bool)
        free[taken] = False
        positions = free.nonzero().squeeze(1) + self.span.start
        counts = [count for (count,) in ctx.ranks.gather([len(positions)])]
        drawn = torch.rand(sum(counts), generator=ctx.generator("open", self.index), dtype=torch.float64)
        keys = drawn[sum(counts[: ctx.ranks.index]) :][: len(positions)]
        left = (self.capacity - self.tiles.counts(chosen)).cpu()
        opened = self.tiles.largest(ScoredPositions(keys, positions), left).positions
        closed = torch.ones(len(self.span), dtype=torch.bool)
        closed[opened - self.span.start] = False
        return (closed.nonzero().squeeze(1) + self.span.start).to(chosen.device)


def limited(
    after: Sequence[Edited], tiles: Sequence[Tiles], limits: Sequence[Tensor], ranks: Ranks
) -> list[LimitedEdited]:
    """Layers after the drop, with limits for their tiles, and with the room that they have on all ranks together."""
    views = [LimitedEdited(*arguments) for arguments in zip(after, tiles, limits, strict=True)]
    for view, capacity in zip(views, total(ranks, (layer.total_capacity for layer in views)), strict=True):
        view.total_capacity = capacity
    return views
