"""How many weights each layer gets back: whole numbers that sum to ``n`` and never exceed a layer's room."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rewire.core.across_layers import largest_inactive, mean_magnitudes
from rewire.core.layer import Context, Layer, Signal
from rewire.core.ranks import total
from rewire.core.score import AnySignal, basic_signals
from rewire.core.topology import Top
from rewire.core.views import Edited
from rewire.parts.apportion import apportion


@dataclass(frozen=True)
class InPlace:
    """Every layer gets back what it lost (in proportion to it, while the density falls)."""

    @property
    def signals(self) -> frozenset[AnySignal]:
        """Nothing."""
        return frozenset()

    def most(self, dropped: Sequence[int], room: Sequence[int]) -> list[int]:
        """What was lost, unless some of it does not fit and has to go elsewhere."""
        fits = all(d <= r for d, r in zip(dropped, room, strict=True))
        return list(dropped) if fits else [sum(dropped)] * len(dropped)

    def __call__(self, before: Sequence[Layer], after: Sequence[Edited], n: int, ctx: Context) -> list[int]:
        """Count what was dropped."""
        return apportion(n, [layer.lost for layer in after], [layer.room for layer in after])


@dataclass(frozen=True)
class Proportional:
    """In proportion to a property of the layers; what does not fit in one goes to the others, never lost.

    ``to="survivors"``: the weights that survived the drop (DSR). ``to="momentum"``: the mean magnitude of the momentum
    of the active weights (SNFS).
    """

    to: Literal["survivors", "momentum"] = "survivors"

    def __post_init__(self) -> None:
        if self.to not in ("survivors", "momentum"):
            raise ValueError(f"proportional to 'survivors' or 'momentum', not {self.to!r}")

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The momentum, if it decides."""
        return frozenset({Signal.MOMENTUM} if self.to == "momentum" else ())

    def most(self, dropped: Sequence[int], room: Sequence[int]) -> list[int]:
        """All of it may go to one layer."""
        return [sum(dropped)] * len(dropped)

    def __call__(self, before: Sequence[Layer], after: Sequence[Edited], n: int, ctx: Context) -> list[int]:
        """Weigh the layers, then divide."""
        if self.to == "survivors":
            weights = [float(layer.nnz) for layer in after]
        else:
            weights = mean_magnitudes(before, Signal.MOMENTUM, ctx.ranks)
        return apportion(n, weights, [layer.room for layer in after])


@dataclass(frozen=True)
class GlobalTop:
    """As many as the layer has among the ``n`` largest ``|signal|`` of all inactive weights of the network (GGR).

    A zero never counts as strong: when fewer than ``n`` candidates have a signal, the rest is apportioned by room.
    ``scale="layer"`` divides a layer's signal by its mean magnitude over the active weights first, for ablation.
    """

    signal: AnySignal = Signal.GRAD
    scale: Literal["raw", "layer"] = "raw"

    def __post_init__(self) -> None:
        if self.scale not in ("raw", "layer"):
            raise ValueError(f"scale must be 'raw' or 'layer', not {self.scale!r}")

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The signal that is ranked."""
        return frozenset({self.signal})

    def most(self, dropped: Sequence[int], room: Sequence[int]) -> list[int]:
        """All of it may go to one layer."""
        return [sum(dropped)] * len(dropped)

    def candidates(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[Top] | None:
        """What must be captured before a step that ranks gradients."""
        return self.rank(layers, layers, n, ctx) if Signal.GRAD in basic_signals([self.signal]) else None

    def rank(self, before: Sequence[Layer], after: Sequence[Layer], n: int, ctx: Context) -> list[Top]:
        """The ``n`` strongest candidates, layer by layer."""
        scales = (
            [mean or 1.0 for mean in mean_magnitudes(before, self.signal, ctx.ranks)] if self.scale == "layer" else None
        )
        return largest_inactive(after, self.signal, n, scales, ctx.ranks)

    def __call__(self, before: Sequence[Layer], after: Sequence[Edited], n: int, ctx: Context) -> list[int]:
        """Count each layer's share of the strongest."""
        counts = total(ctx.ranks, map(len, self.rank(before, after, n, ctx)))
        room = [layer.room - count for layer, count in zip(after, counts, strict=True)]
        rest = apportion(n - sum(counts), room, room)
        return [count + more for count, more in zip(counts, rest, strict=True)]
