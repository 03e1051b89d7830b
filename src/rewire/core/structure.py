"""How a constraint changes a rewiring: what one unit of the budget is, and which positions can be grown together.

A constraint cuts every layer into tiles and is one of three kinds:

- the weights of a tile exist together or not at all (blocks, channels): parts see layers of tiles, and count tiles;
- a tile has at most so many weights (N:M): parts see the room that is left, and the candidates that fit into it;
- all tiles have equally many weights, or none (constant fan-in): as before, once the count of each layer is known.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from rewire.core.even import settle_even
from rewire.core.layer import Layer, LayerSpec, spec_of
from rewire.core.ranks import Ranks
from rewire.core.score import AnySignal
from rewire.core.tile_views import LimitedEdited, TileLayer, limited
from rewire.core.tiles import Tiles
from rewire.core.topology import Edit
from rewire.core.views import Edited


class Constraint(Protocol):
    """A structure that every layer has at every step. A frozen dataclass, because checkpoints store its ``repr``."""

    @property
    def whole(self) -> bool:
        """Whether the weights of a tile exist together or not at all; the budget then counts tiles."""

    @property
    def limit(self) -> int | None:
        """The most weights that a tile may have; ``None`` if there is no such limit."""

    @property
    def even(self) -> bool:
        """Whether all tiles of a layer that have weights have equally many."""

    @property
    def least_salient(self) -> float:
        """If ``even``: a tile with a lower share of salient weights is emptied. Never, if it is 0."""

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The signals that it reads of inactive weights."""

    def tiles(self, spec: LayerSpec) -> Tiles:
        """The tiles of a layer; raises a ``ValueError`` that names the layer if its shape does not admit them."""


class Structure:
    """The tiles of some layers under a constraint. Without a constraint, everything stays as it is.

    If layers are sharded over ranks, no shard may cut a tile: see ``core.arrangement``.
    """

    def __init__(self, constraint: Constraint | None, layers: Sequence[Layer], ranks: Ranks) -> None:
        self.constraint, self.layers, self.ranks = constraint, layers, ranks
        self.tiles: list[Tiles] = []
        if constraint is not None:
            self.tiles = [constraint.tiles(spec_of(layer)).within(layer.span) for layer in layers]

    def views(self, layers: Sequence[Layer]) -> Sequence[Layer]:
        """The layers as parts see them: layers of tiles, if tiles exist as a whole."""
        if self.constraint is None or not self.constraint.whole:
            return layers
        return [TileLayer(layer, tiles) for layer, tiles in zip(layers, self.tiles, strict=True)]

    def limited(self, after: Sequence[Edited]) -> Sequence[Edited]:
        """The layers after the drop, as the allocation sees them."""
        if self.constraint is None or self.constraint.whole:
            return after
        limits = [self._limits(layer, tiles) for layer, tiles in zip(after, self.tiles, strict=True)]
        return limited(after, self.tiles, limits, self.ranks)

    def settle(self, after: Sequence[Edited], counts: list[int]) -> tuple[Sequence[Edited], list[int]]:
        """The layers as growth sees them, and how many weights each one grows, once the allocation is known."""
        if self.constraint is None or not self.constraint.even:
            return after, counts
        least, signals = self.constraint.least_salient, self.constraint.signals
        return settle_even(after, self.tiles, counts, least, signals, self.ranks)

    def check_growth(self, part: object, grown: Sequence[Tensor], after: Sequence[Edited]) -> None:
        """Raise, on all ranks, if a tile got more weights than it may have."""
        if self.constraint is None or self.constraint.whole:
            return
        sentences = [self._overfull(part, positions, layer) for positions, layer in zip(grown, after, strict=True)]
        rows = self.ranks.gather([int(sentence is not None) for sentence in sentences])
        for layer, sentence, column in zip(after, sentences, zip(*rows, strict=True), strict=True):
            if any(column):
                elsewhere = f"grow={part!r} puts too many weights into a tile of {layer.name} on another rank"
                raise ValueError(sentence or elsewhere)

    def _overfull(self, part: object, grown: Tensor, layer: Edited) -> str | None:
        """A sentence about a tile with too many weights, if there is one."""
        if not isinstance(layer, LimitedEdited) or not len(grown):
            return None
        excess = layer.tiles.counts(grown) - layer.capacity
        if not bool((excess > 0).any()):
            return None
        tile = int(excess.argmax())
        return (
            f"grow={part!r} puts {int(layer.tiles.counts(grown)[tile])} weights into tile "
            f"{tile + layer.tiles.first} of {layer.name}, which has room for "
            f"{int(layer.capacity[tile])} under {self.constraint!r}: choose among "
            "`layer.admissible(candidates)`, and draw outside of `layer.occupied_beside(chosen, ctx)`"
        )

    def expanded(self, edits: Sequence[Edit]) -> list[Edit]:
        """Edits of tiles as edits of weights, whose values are given for weights already."""
        if self.constraint is None or not self.constraint.whole:
            return list(edits)
        pairs = zip(edits, self.tiles, strict=True)
        return [Edit(tiles.positions(edit.drop), tiles.positions(edit.grow), edit.value) for edit, tiles in pairs]

    def _limits(self, layer: Edited, tiles: Tiles) -> Tensor:
        assert self.constraint is not None
        active = layer.base.active()
        if self.constraint.even:  # a tile that has been emptied stays empty
            return tiles.size * (tiles.counts(active) > 0).long()
        return torch.full((tiles.count,), self.constraint.limit or tiles.size, device=active.device)


def unit_sizes(constraint: Constraint | None, layers: Sequence[Layer]) -> list[int]:
    """How many weights one unit of the budget has in each layer: those of a tile, if tiles exist as a whole."""
    if constraint is None or not constraint.whole:
        return [1] * len(layers)
    return [constraint.tiles(spec_of(layer)).size for layer in layers]


def structure_fault(constraint: Constraint, layer: Layer, active: Tensor | None = None) -> str | None:
    """What contradicts the constraint in a layer, or ``None``. ``active``: all its positions, if it is sharded."""
    return tile_fault(constraint, constraint.tiles(spec_of(layer)), layer.active() if active is None else active)


def tile_fault(constraint: Constraint, tiles: Tiles, active: Tensor) -> str | None:
    """What contradicts the constraint in a layer that has weights at these positions, or ``None``."""
    counts = tiles.counts(active)
    if constraint.whole:
        wrong = (counts != 0) & (counts != tiles.size)
        meaning = f"where all {tiles.size} or none exist"
    elif constraint.even:
        wrong = (counts != 0) & (counts != counts.max())
        meaning = f"where others have {int(counts.max())}"
    else:
        wrong = counts > (constraint.limit or tiles.size)
        meaning = f"where {constraint.limit} are allowed"
    if not bool(wrong.any()):
        return None
    tile = int(wrong.nonzero()[0])
    return (
        f"{int(wrong.sum())} of {tiles.count} tiles violate {constraint!r}: tile {tile} has {int(counts[tile])} "
        f"weights {meaning}"
    )
