"""Drop: which active weights are removed. A layer never loses its last weight."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rewire.core.layer import Context, Layer, Signal, droppable
from rewire.core.ranks import total
from rewire.core.score import AnySignal
from rewire.core.topology import ScoredPositions
from rewire.parts.apportion import apportion
from rewire.parts.collectives import Collectives, Gather, Select


@dataclass(frozen=True)
class Lowest:
    """The ``n`` weights of lowest ``|score|``; of equal ones the first by position.

    ``scope="layer"``: the same fraction of every layer's active weights. ``scope="network"``: the lowest of the whole
    network, whichever layers they are in.
    """

    score: AnySignal = Signal.WEIGHT
    scope: Literal["layer", "network"] = "layer"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.scope not in ("layer", "network"):
            raise ValueError(f"scope must be 'layer' or 'network', not {self.scope!r}")

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The score."""
        return frozenset({self.score})

    def collectives(self, layers: int) -> Collectives:
        """A selection in each layer; network-wide, one more among what these selected."""
        merged = [Select(1, layers, self.score)] if self.scope == "network" else []
        return [Select(layers, layers, self.score), *merged]

    def most(self, layers: Sequence[Layer], n: int) -> list[int]:
        """Exactly the layer's share of ``n``; network-wide, all ``n`` may be in one layer."""
        if self.scope == "network":
            return [min(n, droppable(layer)) for layer in layers]
        active = [0 if layer.frozen else layer.nnz for layer in layers]
        return apportion(n, active, [droppable(layer) for layer in layers])

    def __call__(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[Tensor]:
        """Select the lowest of each layer; network-wide, the lowest of those."""
        negated = [
            ScoredPositions(-layer.read(self.score).abs(), layer.active()) for layer in layers
        ]  # the lowest is the largest
        lowest = ctx.ranks.largest(negated, self.most(layers, n))
        if self.scope == "network":
            lowest = ctx.ranks.merge(lowest, n)
        return [top.positions for top in lowest]


@dataclass(frozen=True)
class BelowThreshold:
    """Every weight below a threshold that all layers share and that adapts to the target ``n`` (DSR).

    The threshold doubles after a rewiring that dropped fewer than 90 % of ``n`` and halves after one that dropped more
    than 110 %. It is kept in ``ctx.memory["threshold"]``, which checkpoints hold.
    """

    initial: float = 1e-3
    tolerance: float = 0.1
    exact: ClassVar[bool] = False

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The weights."""
        return frozenset({Signal.WEIGHT})

    def collectives(self, layers: int) -> Collectives:
        """How many are below the threshold, twice; a selection where a layer would be left without weights."""
        return [Gather(layers, times=2), Select(layers, layers, Signal.WEIGHT)]

    def most(self, layers: Sequence[Layer], n: int) -> list[int]:
        """All but one: any number may be below the threshold."""
        return [droppable(layer) for layer in layers]

    def __call__(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[Tensor]:
        """Drop, then adapt the threshold for the next rewiring."""
        threshold = float(ctx.memory.get("threshold", self.initial))
        dropped = _all_but_the_largest(layers, [layer.read(Signal.WEIGHT).abs() < threshold for layer in layers], ctx)
        count = sum(total(ctx.ranks, map(len, dropped)))
        if count < (1 - self.tolerance) * n:
            threshold *= 2
        elif count > (1 + self.tolerance) * n:
            threshold /= 2
        ctx.memory["threshold"] = threshold
        return dropped


@dataclass(frozen=True)
class SignFlipped:
    """Every weight whose sign the optimizer's step flipped (DeepR), however many these are; ``n`` is ignored."""

    exact: ClassVar[bool] = False

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The weights, and their signs before the step."""
        return frozenset({Signal.WEIGHT, Signal.SIGN})

    def collectives(self, layers: int) -> Collectives:
        """How many flipped; a selection where a layer would be left without weights."""
        return [Gather(layers), Select(layers, layers, Signal.WEIGHT)]

    def most(self, layers: Sequence[Layer], n: int) -> list[int]:
        """All but one: any number may flip."""
        return [droppable(layer) for layer in layers]

    def __call__(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[Tensor]:
        """Compare the signs before and after the step; a weight that is exactly zero now has not flipped yet."""
        flipped = [layer.read(Signal.SIGN) * layer.read(Signal.WEIGHT).sign() < 0 for layer in layers]
        return _all_but_the_largest(layers, flipped, ctx)


def _all_but_the_largest(layers: Sequence[Layer], marks: Sequence[Tensor], ctx: Context) -> list[Tensor]:
    """The marked active positions of each layer; if all are marked, without the largest weight. Frozen layers: none."""
    counts = total(ctx.ranks, (int(mark.sum()) for mark in marks))
    emptied = [bool(layer.nnz) and count == layer.nnz for layer, count in zip(layers, counts, strict=True)]
    dropped = [
        layer.active()[:0] if layer.frozen else layer.active()[mark] for layer, mark in zip(layers, marks, strict=True)
    ]
    if any(emptied):
        magnitudes = [ScoredPositions(layer.read(Signal.WEIGHT).abs(), layer.active()) for layer in layers]
        largest = ctx.ranks.largest(magnitudes, [int(empty) for empty in emptied])
        dropped = [drop[~torch.isin(drop, top.positions)] for drop, top in zip(dropped, largest, strict=True)]
    return dropped
