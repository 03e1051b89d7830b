"""Which active weights go. A layer never loses its last weight."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from rewire.layer import Context, Layer, Signal, nnz, spare
from rewire.topology import Top, apportion, merge


class Drop(Protocol):
    """Sorted positions to drop in each layer, about ``n`` in all."""

    exact: ClassVar[bool]  # drops exactly n, as a falling density needs

    @property
    def signals(self) -> frozenset[Signal]:
        """What is read of the active weights."""

    def most(self, layers: Sequence[Layer], n: int) -> list[int]:
        """The most that each layer may lose, known before the optimizer's step."""

    def __call__(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[Tensor]: ...


@dataclass(frozen=True)
class Lowest:
    """The ``n`` weights of lowest ``|score|``; ties go by position.

    ``scope="layer"``: the same fraction of every layer's active weights. ``scope="network"``: wherever they are.
    """

    score: Signal = Signal.WEIGHT
    scope: Literal["layer", "network"] = "layer"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.scope not in ("layer", "network"):
            raise ValueError(f"scope must be 'layer' or 'network', not {self.scope!r}")

    @property
    def signals(self) -> frozenset[Signal]:
        """The score."""
        return frozenset({self.score})

    def most(self, layers: Sequence[Layer], n: int) -> list[int]:
        """Exact per layer; network-wide, all n may lie in one layer."""
        if self.scope == "network":
            return [min(n, spare(layer)) for layer in layers]
        active = [0 if layer.frozen else nnz(layer) for layer in layers]
        return apportion(n, active, [spare(layer) for layer in layers])

    def __call__(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[Tensor]:
        """Rank each layer; network-wide, merge the rankings."""
        lowest = [self._lowest(layer, k) for layer, k in zip(layers, self.most(layers, n), strict=True)]
        return [one.positions for one in merge(lowest, n)]

    def _lowest(self, layer: Layer, k: int) -> Top:
        return Top(-layer.read(self.score).abs(), layer.active()).strongest(k)


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
    def signals(self) -> frozenset[Signal]:
        """The weights."""
        return frozenset({Signal.WEIGHT})

    def most(self, layers: Sequence[Layer], n: int) -> list[int]:
        """Any number may lie below the threshold."""
        return [spare(layer) for layer in layers]

    def __call__(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[Tensor]:
        """Drop, then adapt the threshold for the next time."""
        threshold = float(ctx.memory.get("threshold", self.initial))
        dropped = [_sparing_one(layer, layer.read(Signal.WEIGHT).abs() < threshold) for layer in layers]
        count = sum(map(len, dropped))
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
    def signals(self) -> frozenset[Signal]:
        """The weights, and their signs before the update."""
        return frozenset({Signal.WEIGHT, Signal.SIGN})

    def most(self, layers: Sequence[Layer], n: int) -> list[int]:
        """Any number may flip."""
        return [spare(layer) for layer in layers]

    def __call__(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[Tensor]:
        """Compare the signs before and after; a weight that arrives at exactly zero has not flipped yet."""
        return [_sparing_one(layer, layer.read(Signal.SIGN) * layer.read(Signal.WEIGHT).sign() < 0) for layer in layers]


def _sparing_one(layer: Layer, chosen: Tensor) -> Tensor:
    """The chosen active positions; if they are all, the largest weight stays. None of a frozen layer's."""
    if layer.frozen:
        return layer.active()[:0]
    if len(chosen) and bool(chosen.all()):
        chosen = chosen.clone()
        chosen[torch.argmax(layer.read(Signal.WEIGHT).abs())] = False
    return layer.active()[chosen]
