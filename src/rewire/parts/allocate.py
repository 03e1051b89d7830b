"""Allocation: how many new weights each layer gets. Integers that sum to ``n``, none above its layer's room."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rewire.core.across_layers import largest_inactive, mean_magnitudes
from rewire.core.layer import Context, Layer, Signal
from rewire.core.ranks import total
from rewire.core.score import AnySignal, basic_signals
from rewire.core.topology import ScoredPositions
from rewire.core.views import Edited
from rewire.parts.apportion import apportion
from rewire.parts.collectives import Collectives, Gather, Select
from rewire.parts.sampling import sample_inactive


@dataclass(frozen=True)
class InPlace:
    """Every layer gets back as many weights as it lost; while the density falls, in proportion to what it lost."""

    @property
    def signals(self) -> frozenset[AnySignal]:
        """Reads no signal."""
        return frozenset()

    def collectives(self, layers: int) -> Collectives:
        """Asks nothing of other ranks."""
        return []

    def most(self, dropped: Sequence[int], room: Sequence[int]) -> list[int]:
        """What each layer lost; if that does not fit everywhere, the rest may all go to one layer."""
        fits = all(d <= r for d, r in zip(dropped, room, strict=True))
        return list(dropped) if fits else [sum(dropped)] * len(dropped)

    def __call__(self, before: Sequence[Layer], after: Sequence[Edited], n: int, ctx: Context) -> list[int]:
        """Divide ``n`` in proportion to the dropped weights of each layer."""
        return apportion(n, [layer.lost for layer in after], [layer.room for layer in after])


@dataclass(frozen=True)
class Proportional:
    """In proportion to a property of each layer. What exceeds a layer's room goes to the other layers.

    ``to="survivors"``: the number of weights that survived the drop (DSR). ``to="momentum"``: the mean magnitude of the
    momentum of the active weights (SNFS).
    """

    to: Literal["survivors", "momentum"] = "survivors"

    def __post_init__(self) -> None:
        if self.to not in ("survivors", "momentum"):
            raise ValueError(f"proportional to 'survivors' or 'momentum', not {self.to!r}")

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The momentum, if the allocation depends on it."""
        return frozenset({Signal.MOMENTUM} if self.to == "momentum" else ())

    def collectives(self, layers: int) -> Collectives:
        """The means: the largest exponents, then the sums."""
        return [Gather(layers, times=2)] if self.to == "momentum" else []

    def most(self, dropped: Sequence[int], room: Sequence[int]) -> list[int]:
        """All new weights may go to one layer."""
        return [sum(dropped)] * len(dropped)

    def __call__(self, before: Sequence[Layer], after: Sequence[Edited], n: int, ctx: Context) -> list[int]:
        """Divide ``n`` in proportion to survivors or mean momentum."""
        if self.to == "survivors":
            weights = [float(layer.nnz) for layer in after]
        else:
            weights = mean_magnitudes(before, Signal.MOMENTUM, ctx.ranks)
        return apportion(n, weights, [layer.room for layer in after])


@dataclass(frozen=True)
class GlobalTop:
    """Each layer gets as many as it has among the ``n`` largest ``|signal|`` of all inactive positions (GGR).

    A signal of exactly zero is never ranked: if fewer than ``n`` positions have another, the rest is divided in
    proportion to room. ``scale="layer"`` first divides a layer's signal by its mean magnitude over the active weights,
    for ablation.

    ``sample``: rank only a random sample of each layer's inactive positions, so many for each weight that it has, as in
    guided stochastic exploration (GSE). The growth then chooses among the same positions. Just-dropped weights are
    ranked besides. Time and memory grow with the number of weights instead of the size of the dense layers.
    """

    signal: AnySignal = Signal.GRAD
    scale: Literal["raw", "layer"] = "raw"
    sample: float | None = None

    def __post_init__(self) -> None:
        if self.scale not in ("raw", "layer"):
            raise ValueError(f"scale must be 'raw' or 'layer', not {self.scale!r}")
        if self.sample is None:
            return
        if not self.sample > 0:
            raise ValueError(f"sample, candidates per weight of a layer, must be positive or None, not {self.sample!r}")
        if Signal.GRAD not in basic_signals([self.signal]):
            raise ValueError(
                f"sample={self.sample!r} ranks gradients, of which only the sampled ones are computed; "
                f"{self.signal!r} reads none, so leave sample out"
            )

    def __repr__(self) -> str:
        """Without ``sample`` if there is none, as in checkpoints from before it existed."""
        sample = "" if self.sample is None else f", sample={self.sample!r}"
        return f"{type(self).__qualname__}(signal={self.signal!r}, scale={self.scale!r}{sample})"

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The signal that is ranked."""
        return frozenset({self.signal})

    def collectives(self, layers: int) -> Collectives:
        """Gradients are ranked twice: as candidates before the optimizer's step, and after the drop."""
        rankings = 2 if Signal.GRAD in basic_signals([self.signal]) else 1
        scales = [Gather(layers, times=2 * rankings)] if self.scale == "layer" else []
        draws = [] if self.sample is None else [Gather(1, times=layers)]
        return [Select(1, layers, self.signal, times=rankings), Gather(layers), *scales, *draws]

    def most(self, dropped: Sequence[int], room: Sequence[int]) -> list[int]:
        """All new weights may go to one layer."""
        return [sum(dropped)] * len(dropped)

    def candidates(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[ScoredPositions] | None:
        """The ``n`` largest gradients, to be captured before the optimizer's step; ``None`` for another signal."""
        if self.sample is not None:
            sampled = [self._sampled(layer, index, ctx) for index, layer in enumerate(layers)]
            return ctx.ranks.merge(sampled, n, self._scales(layers, ctx))
        return self.rank(layers, layers, n, ctx) if Signal.GRAD in basic_signals([self.signal]) else None

    def rank(self, before: Sequence[Layer], after: Sequence[Layer], n: int, ctx: Context) -> list[ScoredPositions]:
        """The ``n`` largest of all inactive positions, as one list per layer."""
        return largest_inactive(after, self.signal, n, self._scales(before, ctx), ctx.ranks)

    def _scales(self, layers: Sequence[Layer], ctx: Context) -> list[float] | None:
        """What the signal of each layer is divided by."""
        if self.scale == "raw":
            return None
        return [mean or 1.0 for mean in mean_magnitudes(layers, self.signal, ctx.ranks)]

    def _sampled(self, layer: Layer, index: int, ctx: Context) -> ScoredPositions:
        """The signals of a layer's sample that are not zero; none of a frozen layer."""
        positions = layer.active()[:0]
        if not layer.frozen:
            positions = sample_inactive(layer, self.sample or 0.0, index, ctx)
        values = layer.read_at(self.signal, positions).abs()
        return ScoredPositions(values, positions).where(values > 0)

    def __call__(self, before: Sequence[Layer], after: Sequence[Edited], n: int, ctx: Context) -> list[int]:
        """Count how many of the ``n`` largest each layer has; divide the rest in proportion to room."""
        ranked = total(ctx.ranks, map(len, self.rank(before, after, n, ctx)))
        room = [layer.room - count for layer, count in zip(after, ranked, strict=True)]
        unranked = apportion(n - sum(ranked), room, room)
        return [count + extra for count, extra in zip(ranked, unranked, strict=True)]
