"""Grow: which inactive positions of a layer become active."""

import math
from dataclasses import dataclass
from fractions import Fraction

from torch import Tensor

from rewire._lookup import choose
from rewire.core.layer import Context, Layer, Signal
from rewire.core.protocols import Grow
from rewire.core.ranks import total
from rewire.core.score import AnySignal
from rewire.core.topology import ScoredPositions, insert
from rewire.core.views import Edited
from rewire.parts.collectives import Collectives, Gather, Select
from rewire.parts.sampling import draw_free, sample_inactive


@dataclass(frozen=True)
class AtRandom:
    """Uniformly at random (SET)."""

    @property
    def signals(self) -> frozenset[AnySignal]:
        """Reads no signal."""
        return frozenset()

    def collectives(self, layers: int) -> Collectives:
        """The number of free positions of each layer, one layer after the other."""
        return [Gather(1, times=layers)]

    def __call__(self, layer: Edited, k: int, ctx: Context) -> Tensor:
        """Draw ``k`` of the free positions."""
        return _at_random(layer, layer.drop[:0], k, ctx)


@dataclass(frozen=True)
class Mix:
    """A share of ``k`` at the largest ``|signal|``, the rest at random among the other free positions (GGR: one half).

    The share is rounded up. A signal of exactly zero is never chosen: what is missing then is grown at random.
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

    def collectives(self, layers: int) -> Collectives:
        """A selection in each layer, one after the other; then a random draw, if the selection left any open."""
        return _ranked_collectives(self.signal, layers)

    def __call__(self, layer: Edited, k: int, ctx: Context) -> Tensor:
        """Take the largest, then draw the rest."""
        return _strongest_then_random(layer, self.signal, math.ceil(Fraction(str(self.share)) * k), k, ctx)


@dataclass(frozen=True)
class Strongest:
    """The largest ``|signal|`` (RigL: the gradient, SNFS: the momentum); at random if too few are not zero."""

    signal: AnySignal = Signal.GRAD

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The signal that is ranked."""
        return frozenset({self.signal})

    def collectives(self, layers: int) -> Collectives:
        """A selection in each layer, one after the other; then a random draw, if the selection left any open."""
        return _ranked_collectives(self.signal, layers)

    def __call__(self, layer: Edited, k: int, ctx: Context) -> Tensor:
        """Take the largest."""
        return _strongest_then_random(layer, self.signal, k, k, ctx)


@dataclass(frozen=True)
class StrongestOfSample:
    """The largest ``|signal|`` among a random sample of the inactive positions (GSE).

    The sample has ``ratio`` positions for each weight of the layer. It is drawn uniformly from the positions that are
    inactive before the drop: a just-dropped weight does not come back by its signal. If too few signals of the sample
    are not zero, the rest is grown at random.
    """

    signal: AnySignal = Signal.GRAD
    ratio: float = 1.0

    def __post_init__(self) -> None:
        if not self.ratio > 0:
            raise ValueError(f"ratio, candidates per weight of the layer, must be positive, not {self.ratio!r}")

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The signal that is ranked."""
        return frozenset({self.signal})

    def collectives(self, layers: int) -> Collectives:
        """The number of inactive positions, to draw the sample before the step and after the drop; then the ranking."""
        return [Gather(1, times=2 * layers), *_ranked_collectives(self.signal, layers)]

    def sample(self, layer: Layer, index: int, ctx: Context) -> Tensor:
        """Draw the sample of a layer; the same before and after the optimizer's step."""
        return sample_inactive(layer, self.ratio, index, ctx)

    def __call__(self, layer: Edited, k: int, ctx: Context) -> Tensor:
        """Rank the sample."""
        if k == 0:
            return layer.drop[:0]
        positions = self.sample(layer.base, layer.index, ctx)
        values = layer.read_at(self.signal, positions).abs()
        return fill_at_random(layer, ScoredPositions(values, positions).where(values > 0), k, k, ctx)


GROWTHS: dict[str, Grow] = {"mix": Mix(), "gradient": Strongest(), "random": AtRandom()}


def growth(name_or_part: str | Grow) -> Grow:
    """The growth of a name (``mix``, ``gradient``, ``random``); a part is returned as it is."""
    return name_or_part if callable(name_or_part) else choose("growth", name_or_part, GROWTHS)


def _ranked_collectives(signal: AnySignal, layers: int) -> Collectives:
    """Per layer: the selection, how many it found, and the number of free positions for a random draw."""
    return [Select(1, 1, signal, times=layers), Gather(1, times=2 * layers)]


def _strongest_then_random(layer: Edited, signal: AnySignal, ranked: int, k: int, ctx: Context) -> Tensor:
    """``k`` positions: up to ``ranked`` at the largest ``|signal|``, the others at random."""
    if k == 0:
        return layer.drop[:0]
    return fill_at_random(layer, layer.top_inactive(signal, ranked), ranked, k, ctx)


def fill_at_random(layer: Edited, candidates: ScoredPositions, ranked: int, k: int, ctx: Context) -> Tensor:
    """``k`` positions: the ``ranked`` largest of the candidates of all ranks, the others at random."""
    (top,) = ctx.ranks.largest([layer.admissible(candidates)], [ranked])
    strongest, (count,) = top.positions, total(ctx.ranks, [len(top)])
    if count == k:
        return strongest
    return insert(strongest, _at_random(layer, strongest, k - count, ctx))


def _at_random(layer: Edited, chosen: Tensor, k: int, ctx: Context) -> Tensor:
    """``k`` free positions besides the chosen ones."""
    if k == 0:
        return chosen[:0]
    return draw_free(layer.span, layer.occupied_beside(chosen, ctx), k, ctx, ctx.generator("grow", layer.index))
