"""Which inactive positions come alive, and the value they are born with."""

import math
from dataclasses import dataclass
from fractions import Fraction

from torch import Tensor

from rewire._lookup import choose
from rewire.core.layer import Context, Signal
from rewire.core.protocols import Grow
from rewire.core.ranks import total
from rewire.core.score import AnySignal
from rewire.core.topology import distinct, insert, nth_inactive
from rewire.core.views import Edited


@dataclass(frozen=True)
class AtRandom:
    """Uniformly at random (SET)."""

    @property
    def signals(self) -> frozenset[AnySignal]:
        """Nothing."""
        return frozenset()

    def __call__(self, layer: Edited, k: int, ctx: Context) -> Tensor:
        """Draw from the free positions."""
        return _at_random(layer, layer.occupied(), k, ctx)


@dataclass(frozen=True)
class Mix:
    """A share by the largest ``|signal|``, the rest at random from what is left (GGR: half and half).

    The odd one goes to the signal. Zeros never count as strong: what the signal cannot fill is grown at random.
    """

    signal: AnySignal = Signal.GRAD
    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"the share grown by signal must lie in [0, 1], not {self.share!r}")

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The signal that is ranked."""
        return frozenset({self.signal})

    def __call__(self, layer: Edited, k: int, ctx: Context) -> Tensor:
        """Rank, then draw."""
        return _strongest_then_random(layer, self.signal, math.ceil(Fraction(str(self.share)) * k), k, ctx)


@dataclass(frozen=True)
class Strongest:
    """The largest ``|signal|`` (RigL by gradient, SNFS by momentum); at random where there is none."""

    signal: AnySignal = Signal.GRAD

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The signal that is ranked."""
        return frozenset({self.signal})

    def __call__(self, layer: Edited, k: int, ctx: Context) -> Tensor:
        """Rank."""
        return _strongest_then_random(layer, self.signal, k, k, ctx)


GROWTHS: dict[str, Grow] = {"mix": Mix(), "gradient": Strongest(), "random": AtRandom()}


def growth(given: str | Grow) -> Grow:
    """A growth by its name (``mix``, ``gradient``, ``random``), or the part itself."""
    return given if callable(given) else choose("growth", given, GROWTHS)


def _strongest_then_random(layer: Edited, signal: AnySignal, strong: int, k: int, ctx: Context) -> Tensor:
    if k == 0:
        return layer.drop[:0]
    (found,) = ctx.ranks.largest([layer.top_inactive(signal, strong)], [strong])
    chosen, (count,) = found.positions, total(ctx.ranks, [len(found)])
    if count == k:
        return chosen
    return insert(chosen, _at_random(layer, insert(chosen, layer.occupied()), k - count, ctx))


def _at_random(layer: Edited, occupied: Tensor, k: int, ctx: Context) -> Tensor:
    """Every rank makes the same draw among all free positions, and finds those of it that it holds."""
    if k == 0:
        return occupied[:0]
    free = [count for (count,) in ctx.ranks.gather([len(layer.span) - len(occupied)])]
    first, last = sum(free[: ctx.ranks.index]), sum(free[: ctx.ranks.index + 1])
    drawn = distinct(sum(free), k, ctx.generator("grow", layer.index))
    drawn = drawn[(drawn >= first) & (drawn < last)] if len(free) > 1 else drawn
    return nth_inactive(drawn - first, occupied, layer.span.start)
