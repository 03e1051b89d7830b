"""Which inactive positions come alive, and the value they are born with."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import torch
from torch import Tensor

from rewire.choose import choose
from rewire.layer import Context, Edited, Signal
from rewire.ranks import total
from rewire.topology import distinct, nth_inactive


class Grow(Protocol):
    """Exactly ``k`` sorted positions that are free after the drop."""

    @property
    def signals(self) -> frozenset[Signal]:
        """What is read of the inactive weights."""

    def __call__(self, layer: Edited, k: int, ctx: Context) -> Tensor: ...


class Birth(Protocol):
    """The values of ``n`` weights that are born in a layer."""

    def __call__(self, n: int, layer: Edited, ctx: Context) -> Tensor: ...


@dataclass(frozen=True)
class AtRandom:
    """Uniformly at random (SET)."""

    @property
    def signals(self) -> frozenset[Signal]:
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

    signal: Signal = Signal.GRAD
    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"the share grown by signal must lie in [0, 1], not {self.share!r}")

    @property
    def signals(self) -> frozenset[Signal]:
        """The signal that is ranked."""
        return frozenset({self.signal})

    def __call__(self, layer: Edited, k: int, ctx: Context) -> Tensor:
        """Rank, then draw."""
        return _strongest_then_random(layer, self.signal, math.ceil(Fraction(str(self.share)) * k), k, ctx)


@dataclass(frozen=True)
class Strongest:
    """The largest ``|signal|`` (RigL by gradient, SNFS by momentum); at random where there is none."""

    signal: Signal = Signal.GRAD

    @property
    def signals(self) -> frozenset[Signal]:
        """The signal that is ranked."""
        return frozenset({self.signal})

    def __call__(self, layer: Edited, k: int, ctx: Context) -> Tensor:
        """Rank."""
        return _strongest_then_random(layer, self.signal, k, k, ctx)


@dataclass(frozen=True)
class Tiny:
    """A small constant, so that a new weight changes nothing yet; 1e-10 in GGR's paper."""

    value: float = 1e-10

    def __call__(self, n: int, layer: Edited, ctx: Context) -> Tensor:
        """The same for all."""
        return torch.full((n,), self.value, dtype=torch.float64)


@dataclass(frozen=True)
class RandomSign:
    """A small constant with a random sign (DeepR)."""

    value: float = 1e-10

    def __call__(self, n: int, layer: Edited, ctx: Context) -> Tensor:
        """A fair coin for each."""
        coins = torch.randint(2, (n,), generator=ctx.generator("birth", layer.index))
        return (2 * coins - 1).double() * self.value


GROWTHS: dict[str, Grow] = {"mix": Mix(), "gradient": Strongest(), "random": AtRandom()}


def growth(given: str | Grow) -> Grow:
    """A growth by its name (``mix``, ``gradient``, ``random``), or the part itself."""
    return given if callable(given) else choose("growth", given, GROWTHS)


def _strongest_then_random(layer: Edited, signal: Signal, strong: int, k: int, ctx: Context) -> Tensor:
    if k == 0:
        return layer.drop[:0]
    (found,) = ctx.ranks.best([layer.top_inactive(signal, strong)], [strong])
    chosen, (count,) = found.positions, total(ctx.ranks, [len(found)])
    occupied = torch.cat([layer.occupied(), chosen]).sort().values
    return torch.cat([chosen, _at_random(layer, occupied, k - count, ctx)]).sort().values


def _at_random(layer: Edited, occupied: Tensor, k: int, ctx: Context) -> Tensor:
    """Every rank makes the same draw among all free positions, and finds those of it that it holds."""
    if k == 0:
        return occupied[:0]
    free = [count for (count,) in ctx.ranks.gather([len(layer.span) - len(occupied)])]
    first, last = sum(free[: ctx.ranks.index]), sum(free[: ctx.ranks.index + 1])
    drawn = distinct(sum(free), k, ctx.generator("grow", layer.index))
    drawn = drawn[(drawn >= first) & (drawn < last)] if len(free) > 1 else drawn
    return nth_inactive(drawn - first, occupied, layer.span.start)
