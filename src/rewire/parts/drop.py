"""Which active weights go. A layer never loses its last weight."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rewire.core.layer import Context, Layer, Signal, droppable
from rewire.core.ranks import total
from rewire.core.score import AnySignal
from rewire.core.topology import Top
from rewire.parts.apportion import apportion


@dataclass(frozen=True)
class Lowest:
    """The ``n`` weights of lowest ``|score|``; ties go by position.

    ``scope="layer"``: the same fraction of every layer's active weights. ``scope="network"``: wherever they are.
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

    def most(self, layers: Sequence[Layer], n: int) -> list[int]:
        """Exact per layer; network-wide, all n may lie in one layer."""
        if self.scope == "network":
            return [min(n, droppable(layer)) for layer in layers]
        active = [0 if layer.frozen else layer.nnz for layer in layers]
        return apportion(n, active, [droppable(layer) for layer in layers])

    def __call__(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[Tensor]:
        """Rank each layer; network-wide, merge the rankings."""
        scored = [Top(-layer.read(self.score).abs(), layer.active()) for layer in layers]
        lowest = ctx.ranks.largest(scored, self.most(layers, n))
        return [one.positions for one in (ctx.ranks.merge(lowest, n) if self.scope == "network" else lowest)]


@dataclass(frozen=True)
class BelowThreshold:
    """Every weight below a threshold that all layers share and that follows its target (DSR).

    The threshold doubles when fewer than 90 % of ``n`` were dropped and halves when more than 110 % were; it is
    the only state of a method and lives in ``ctx.memory["threshold"]``.
    """

    initial: float = 1e-3
    tolerance: float = 0.1
    exact: ClassVar[bool] = False

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The weights."""
        return frozenset({Signal.WEIGHT})

    def most(self, layers: Sequence[Layer], n: int) -> list[int]:
        """Any number may lie below the threshold."""
        return [droppable(layer) for layer in layers]

    def __call__(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[Tensor]:
        """Drop, then adapt the threshold for the next time."""
        threshold = float(ctx.memory.get("threshold", self.initial))
        dropped = _sparing_one(layers, [layer.read(Signal.WEIGHT).abs() < threshold for layer in layers], ctx)
        count = sum(total(ctx.ranks, map(len, dropped)))
        if count < (1 - self.tolerance) * n:
            threshold *= 2
        elif count > (1 + self.tolerance) * n:
            threshold /= 2
        ctx.memory["threshold"] = threshold
        return dropped


@dataclass(frozen=True)
class SignFlipped:
    """Every weight whose sign the optimizer's update flipped (DeepR); its number is the update's, not ``n``."""

    exact: ClassVar[bool] = False

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The weights, and their signs before the update."""
        return frozenset({Signal.WEIGHT, Signal.SIGN})

    def most(self, layers: Sequence[Layer], n: int) -> list[int]:
        """Any number may flip."""
        return [droppable(layer) for layer in layers]

    def __call__(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[Tensor]:
        """Compare the signs before and after; a weight that arrives at exactly zero has not flipped yet."""
        flipped = [layer.read(Signal.SIGN) * layer.read(Signal.WEIGHT).sign() < 0 for layer in layers]
        return _sparing_one(layers, flipped, ctx)


def _sparing_one(layers: Sequence[Layer], chosen: Sequence[Tensor], ctx: Context) -> list[Tensor]:
    """The chosen active positions; where they are all, the largest weight stays. None of a frozen layer's."""
    counts = total(ctx.ranks, (int(one.sum()) for one in chosen))
    emptied = [bool(layer.nnz) and count == layer.nnz for layer, count in zip(layers, counts, strict=True)]
    dropped = [
        layer.active()[:0] if layer.frozen else layer.active()[one] for layer, one in zip(layers, chosen, strict=True)
    ]
    if any(emptied):
        sizes = [Top(layer.read(Signal.WEIGHT).abs(), layer.active()) for layer in layers]
        stay = ctx.ranks.largest(sizes, [int(one) for one in emptied])
        dropped = [drop[~torch.isin(drop, one.positions)] for drop, one in zip(dropped, stay, strict=True)]
    return dropped
