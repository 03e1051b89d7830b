"""A method is a record of parts; ``plan_rewiring`` is the one algorithm that runs them all."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rewire.core.layer import Context, Layer, Signal, no_edit, numel, spare
from rewire.core.protocols import Allocate, Birth, Curve, Drop, Grow, RanksTheNetwork, Schedule, Start
from rewire.core.ranks import Ranks, before, total
from rewire.core.topology import Edit
from rewire.core.views import Captured, Edited


@dataclass(frozen=True)
class Rewiring:
    """What one rewiring did; the counts are in the order of ``Rewirer.layers``."""

    step: int
    fraction: float
    dropped: list[int]
    grown: list[int]
    regrown: list[int]  # how many of the grown had just been dropped


@dataclass(frozen=True, kw_only=True)
class Method:
    """Where weights start, how many there are, when and which go, where as many come back, and with what value.

    ``regrow_dropped=False`` keeps a just-dropped weight from coming back at once.
    """

    start: Start
    density: Curve
    schedule: Schedule
    drop: Drop
    allocate: Allocate
    grow: Grow
    birth: Birth
    regrow_dropped: bool = True

    def __post_init__(self) -> None:
        for name, part in vars(self).items():
            if name != "regrow_dropped" and not callable(part):
                raise TypeError(f"{name} must be a part (something to call), not {part!r}")
        if not isinstance(self.density, Curve):
            raise TypeError(f"density must be a curve such as Constant(0.1), not {self.density!r}")
        ends = self.density.ends()
        for end in ends:
            if not isinstance(end, (int, float)) or not 0 < end <= 1:
                raise ValueError(f"density must be a number in (0, 1], the share of weights that exist, not {end!r}")
        if ends[1] > ends[0]:
            raise ValueError(f"density may fall but not rise, and {self.density!r} rises")
        if ends[1] < ends[0] and not self.drop.exact:
            raise ValueError(f"a falling density needs a drop that removes a given number; {self.drop!r} does not")

    @property
    def rewires(self) -> bool:
        """Whether weights ever move: a schedule that says ``rewires = False`` never asks for it."""
        return bool(getattr(self.schedule, "rewires", True))

    @property
    def signals(self) -> frozenset[Signal]:
        """Everything that the parts read."""
        return self.drop.signals | self.allocate.signals | self.grow.signals

    @property
    def ranks(self) -> frozenset[Signal]:
        """What is read of inactive weights too."""
        return (self.allocate.signals | self.grow.signals) - {Signal.WEIGHT, Signal.SIGN}


def budget(method: Method, layers: Sequence[Layer], step: int) -> int:
    """How many weights the network has at a step."""
    return round(method.density(step) * sum(numel(layer) for layer in layers))


def plan_rewiring(method: Method, layers: Sequence[Layer], ctx: Context) -> list[Edit] | None:
    """What to drop and grow in every layer at ``ctx.step``, or ``None`` when it is not time. Writes nothing.

    After the edits the network has ``budget(method, layers, ctx.step)`` weights, exactly.
    """
    moved = _to_drop(method, layers, ctx)
    if moved is None:
        return None
    if moved == 0:
        return [no_edit(layer) for layer in layers]
    dropped = method.drop(layers, moved, ctx)
    after = _edited(layers, dropped, total(ctx.ranks, map(len, dropped)), method.regrow_dropped)
    missing = max(budget(method, layers, ctx.step) - sum(layer.nnz for layer in after), 0)
    if missing > sum(layer.room for layer in after):  # almost dense: there is no other place than where they were
        after = _edited(layers, dropped, [layer.lost for layer in after], regrow=True)
    counts = method.allocate(layers, after, missing, ctx)
    grown = [method.grow(layer, k, ctx) for layer, k in zip(after, counts, strict=True)]
    born = [method.birth(k, layer, ctx) for layer, k in zip(after, counts, strict=True)]
    first = before(ctx.ranks, map(len, grown))  # every rank draws all values and takes those of its own positions
    return [
        Edit(layer.drop, grow, values[at : at + len(grow)])
        for layer, grow, values, at in zip(after, grown, born, first, strict=True)
    ]


def _edited(layers: Sequence[Layer], dropped: Sequence[Tensor], lost: Sequence[int], regrow: bool) -> list[Edited]:
    triples = enumerate(zip(layers, dropped, lost, strict=True))
    return [Edited(layer, drop, index, regrow, count) for index, (layer, drop, count) in triples]


def capture(method: Method, layers: Sequence[Layer], ctx: Context) -> list[Captured]:
    """The layers as ``plan_rewiring`` needs them once the optimizer has stepped and the inactive gradients are gone.

    Called just before the step. Keeps the strongest inactive gradients, no more of them than can be asked for.
    """
    views = [Captured(layer, method.signals) for layer in layers]
    moved = _to_drop(method, views, ctx)
    if not moved or Signal.GRAD not in method.ranks:
        return views
    lost = method.drop.most(views, moved)
    room = [numel(v) - v.nnz + (k if method.regrow_dropped else 0) for v, k in zip(views, lost, strict=True)]
    limits = method.allocate.most(lost, room)
    found = method.allocate.candidates(views, sum(lost), ctx) if isinstance(method.allocate, RanksTheNetwork) else None
    if found is None:
        found = [view.top_inactive(Signal.GRAD, k) for view, k in zip(views, limits, strict=True)]
    for view, one, limit in zip(views, found, limits, strict=True):
        view.keep(one, limit)
    return views


def _to_drop(method: Method, layers: Sequence[Layer], ctx: Context) -> int | None:
    """How many weights go at this step: what a falling density no longer allows, and the fraction to move."""
    fraction = method.schedule(ctx.step)
    if fraction is None:
        return None
    alive, target = sum(layer.nnz for layer in layers), budget(method, layers, ctx.step)
    excess = max(alive - target, 0)
    return min(excess + round(fraction * min(alive, target)), sum(map(spare, layers)))


def counts(edits: Sequence[Edit], ranks: Ranks) -> tuple[list[int], list[int], list[int]]:
    """How many were dropped, grown, and dropped and grown again, by layer and over all ranks."""
    regrown = torch.stack([torch.isin(edit.grow, edit.drop).sum().cpu() for edit in edits]).tolist()
    found = total(ranks, [*(len(edit.drop) for edit in edits), *(len(edit.grow) for edit in edits), *regrown])
    size = len(edits)
    return found[:size], found[size : 2 * size], found[2 * size :]
