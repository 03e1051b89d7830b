"""A method is a record of parts; ``plan_rewiring`` is the one algorithm that runs them all."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rewire.core.arrangement import arrange
from rewire.core.layer import Context, Layer, LayerSpec, Signal, droppable, no_edit, numel
from rewire.core.protocols import Allocate, Birth, Curve, Drop, Grow, Schedule, Start
from rewire.core.ranks import Ranks, total
from rewire.core.score import AnySignal, basic_signals, momentum_decay
from rewire.core.structure import Constraint, Structure, unit_sizes
from rewire.core.topology import Edit
from rewire.core.validate import (
    check_allocation,
    check_birth,
    check_constraint,
    check_density,
    check_drop,
    check_fraction,
    check_growth,
    check_members,
    check_start,
)
from rewire.core.views import Edited, PartView

PARTS = ("start", "density", "schedule", "drop", "allocate", "grow", "birth")


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
    """A record of seven parts, one for each question that a method of dynamic sparse training answers.

    ``regrow_dropped=False`` keeps a just-dropped weight from coming back at once. ``constraint``: a structure that the
    weights have at every step, such as ``NM(2, 4)``.
    """

    start: Start
    density: Curve
    schedule: Schedule
    drop: Drop
    allocate: Allocate
    grow: Grow
    birth: Birth
    regrow_dropped: bool = True
    constraint: Constraint | None = None

    def __repr__(self) -> str:
        """As checkpoints store it and ranks compare it: functions by their names, which are the same in every process.

        Without a constraint, as it was before there were constraints.
        """
        names = [*PARTS, "regrow_dropped", *(["constraint"] if self.constraint is not None else [])]
        shown = f"Method({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"
        return re.sub(r"<function (.+?) at 0x[0-9a-fA-F]+>", r"\1", shown)

    def __post_init__(self) -> None:
        for role in PARTS:
            check_members(role, getattr(self, role))
        if not isinstance(self.density, Curve):
            raise TypeError(f"density must be a curve such as Constant(0.1), not {self.density!r}")
        for value in density_bounds(self.density):
            refuse_density(value)
        first, last = self.density.ends()
        at_least = self.drop.exact or getattr(self.drop, "at_least", False)
        if getattr(self.density, "falls", last < first) and not at_least:
            raise ValueError(f"a falling density needs a drop that removes a given number; {self.drop!r} does not")
        if self.constraint is not None:
            check_constraint(self.constraint)
        momentum_decay(self._declared)  # raises if the parts ask for different ones
        if self.constraint is not None and getattr(self.allocate, "sample", None) is not None:
            raise ValueError(
                f"allocate={self.allocate!r} ranks a sample of the gradients, and under {self.constraint!r} all are "
                "kept for the rewiring: leave sample out"
            )
        if self.constraint is not None and self.constraint.whole and Signal.SIGN in self.signals:
            raise ValueError(
                f"drop={self.drop!r} reads the signs of single weights, and under {self.constraint!r} weights are "
                "dropped together: use another drop, such as Lowest()"
            )
        if self.constraint is not None and self.constraint.whole and self.needs_whole_layers:
            raise ValueError(
                f"drop={self.drop!r} or grow={self.grow!r} follows the links of single neurons, and under "
                f"{self.constraint!r} weights exist together: use NM or FanIn, or another method"
            )

    @property
    def _declared(self) -> frozenset[AnySignal]:
        return self.drop.signals | self.allocate.signals | self.grow.signals | self._constraint_signals

    @property
    def _constraint_signals(self) -> frozenset[AnySignal]:
        return frozenset() if self.constraint is None else self.constraint.signals

    @property
    def rewires(self) -> bool:
        """Whether weights ever move: a schedule that says ``rewires = False`` never asks for it."""
        return bool(getattr(self.schedule, "rewires", True))

    @property
    def signals(self) -> frozenset[Signal]:
        """All signals that the parts read, also through scores."""
        return basic_signals(self._declared)

    @property
    def ranks(self) -> frozenset[Signal]:
        """The signals that are read of inactive weights too."""
        return basic_signals(self.ranked_signals) - {Signal.WEIGHT, Signal.SIGN}

    @property
    def ranked_signals(self) -> frozenset[AnySignal]:
        """The signals and scores that are read of inactive weights, as the parts declare them."""
        return self.allocate.signals | self.grow.signals | self._constraint_signals

    @property
    def needs_whole_layers(self) -> bool:
        """Whether a part reads the topology of whole layers, and not only of the shard that a rank holds."""
        return any(getattr(part, "whole_layers", False) for part in (self.drop, self.allocate, self.grow))

    @property
    def momentum_decay(self) -> float:
        """The decay of ``Signal.MOMENTUM``, the running average of the gradient."""
        return momentum_decay(self._declared)

    @property
    def captured_signals(self) -> list[AnySignal]:
        """The signals and scores of inactive weights that must be captured before a step: those that read gradients.

        In the same order on all ranks.
        """
        return sorted((signal for signal in self.ranked_signals if Signal.GRAD in basic_signals([signal])), key=repr)


def refuse_density(value: object) -> None:
    """Raise unless a value is a share of weights that can exist."""
    if not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ValueError(f"density must be a number in (0, 1], the share of weights that exist, not {value!r}")


def density_bounds(curve: Curve) -> tuple[float, float]:
    """The two extreme values of a density: those at its ends, unless the curve has ``bounds()``."""
    extremes: tuple[float, float] = curve.bounds() if hasattr(curve, "bounds") else curve.ends()
    return extremes


def meets_budget(method: Method, layers: Sequence[Layer], step: int) -> bool:
    """Whether the network has as many weights as it should at a step, with as many tiles if a constraint counts those.

    Where all tiles of a layer have equally many weights, there may be fewer by less than one round of a layer.
    """
    sizes = unit_sizes(method.constraint, layers)
    units, existing = (
        sum(count // size for count, size in zip(counted, sizes, strict=True))
        for counted in (map(numel, layers), (layer.nnz for layer in layers))
    )
    missing = round(check_density(method.density, step) * units) - existing
    return missing >= 0 if method.constraint is not None and method.constraint.even else missing == 0


def budget(method: Method, layers: Sequence[Layer], step: int) -> int:
    """How many weights the network has at a step."""
    return round(check_density(method.density, step) * sum(numel(layer) for layer in layers))


def due_fraction(method: Method, layers: Sequence[Layer], step: int) -> float | None:
    """The fraction of the weights to move at a step, ``None`` if no rewiring is due; raises for a wrong density too.

    A wrong schedule or density is refused before anything is planned: a drop down to no weights cannot be undone.
    """
    fraction = check_fraction(method.schedule, step)
    if fraction is None:
        return None
    density, sizes = check_density(method.density, step), unit_sizes(method.constraint, layers)
    units = sum(numel(layer) // size for layer, size in zip(layers, sizes, strict=True))
    if round(density * units) < len(layers):
        what = "weights" if set(sizes) == {1} else "tiles"
        raise ValueError(
            f"density={method.density!r} returns {density} at step {step}, which leaves {round(density * units)} "
            f"{what} for {len(layers)} layers: every layer needs at least one"
        )
    return fraction


def drop_count(method: Method, layers: Sequence[Layer], ctx: Context) -> int | None:
    """How many weights to drop at this step: those above the budget of a falling density, and the fraction to move."""
    fraction = check_fraction(method.schedule, ctx.step)
    if fraction is None:
        return None
    nnz, target = sum(layer.nnz for layer in layers), budget(method, layers, ctx.step)
    excess = max(nnz - target, 0)
    return min(excess + round(fraction * min(nnz, target)), sum(map(droppable, layers)))


def first_positions(method: Method, specs: Sequence[LayerSpec], n: int, ctx: Context) -> list[Tensor]:
    """The positions of the first ``n`` weights, layer by layer, as the method's start places them."""
    return check_start(method.start, method.start(specs, n, ctx), specs, n)


def plan_rewiring(method: Method, layers: Sequence[Layer], ctx: Context) -> list[Edit] | None:
    """What to drop and grow in every layer at ``ctx.step``, or ``None`` if no rewiring is due. Writes nothing.

    After the edits the network has ``budget(method, layers, ctx.step)`` weights, exactly. What parts return is checked,
    so that a mistake raises before anything is changed.
    """
    if due_fraction(method, layers, ctx.step) is None:
        return None
    arrangement = arrange(
        layers, ctx.ranks, method.constraint, method.needs_whole_layers, method.signals, method.ranked_signals
    )
    structure = Structure(method.constraint, arrangement.layers, ctx.ranks)
    originals, layers = layers, structure.views(arrangement.layers)
    n = drop_count(method, layers, ctx)
    assert n is not None
    target = budget(method, layers, ctx.step)
    if n == 0 and target <= sum(layer.nnz for layer in layers):
        return [no_edit(layer) for layer in originals]
    dropped, lost = _plan_drop(method, layers, n, ctx)
    after = structure.limited(_edited(layers, dropped, lost, method.regrow_dropped))
    missing = _missing(method, after, target)
    if missing > sum(layer.room for layer in after):  # almost dense: there is no other place than where they were
        after = structure.limited(_edited(layers, dropped, lost, regrow=True))
    emptied = method.constraint is not None and method.constraint.even  # tiles that may stay empty
    if emptied or any(layer.frozen for layer in after):  # the others may have less room than a rising density asks for
        missing = min(missing, sum(layer.room for layer in after))
    return arrangement.returned(structure.expanded(_plan_growth(method, layers, after, missing, ctx, structure)))


def _plan_drop(method: Method, layers: Sequence[Layer], n: int, ctx: Context) -> tuple[list[Tensor], list[int]]:
    """The positions to drop in each layer, and how many they are over all ranks."""
    if n == 0:
        return [layer.active()[:0] for layer in layers], [0] * len(layers)
    readable = [PartView(layer, method.drop, inactive=False) for layer in layers]
    dropped = method.drop(readable, n, ctx)
    return dropped, check_drop(method.drop, dropped, readable, n, ctx.ranks)


def _missing(method: Method, after: Sequence[Edited], target: int) -> int:
    """How many weights to grow after the drop."""
    nnz = sum(layer.nnz for layer in after)
    if nnz > target and not method.drop.exact:
        raise ValueError(
            f"the density {method.density!r} falls to {target} weights, but drop={method.drop!r} leaves {nnz}: it does "
            "not drop a given number of weights"
        )
    return max(target - nnz, 0)


def _plan_growth(
    method: Method, layers: Sequence[Layer], after: Sequence[Edited], n: int, ctx: Context, structure: Structure
) -> list[Edit]:
    """The edits that grow ``n`` weights in all."""
    before = [PartView(layer, method.allocate) for layer in layers]
    counts = method.allocate(before, [layer.read_by(method.allocate) for layer in after], n, ctx)
    after, counts = structure.settle(after, check_allocation(method.allocate, counts, after, n))
    grown = [method.grow(layer.read_by(method.grow, k), k, ctx) for layer, k in zip(after, counts, strict=True)]
    first = check_growth(method.grow, grown, after, counts, ctx.ranks)
    structure.check_growth(method.grow, grown, after)
    sizes = unit_sizes(method.constraint, structure.layers)
    weights = [k * size for k, size in zip(counts, sizes, strict=True)]
    born = [method.birth(k, layer, ctx) for layer, k in zip(after, weights, strict=True)]
    check_birth(method.birth, born, after, weights)
    # Every rank draws the values of all grown weights of a layer and takes those of the positions that it holds.
    return [
        Edit(layer.drop, grow, values[at * size : (at + len(grow)) * size])
        for layer, grow, values, at, size in zip(after, grown, born, first, sizes, strict=True)
    ]


def _edited(layers: Sequence[Layer], dropped: Sequence[Tensor], lost: Sequence[int], regrow: bool) -> list[Edited]:
    triples = enumerate(zip(layers, dropped, lost, strict=True))
    return [Edited(layer, drop, index, regrow, count) for index, (layer, drop, count) in triples]


def counts(edits: Sequence[Edit], ranks: Ranks) -> tuple[list[int], list[int], list[int]]:
    """How many weights were dropped, grown, and dropped and grown again, by layer and over all ranks."""
    regrown = torch.stack([torch.isin(edit.grow, edit.drop).sum().cpu() for edit in edits]).tolist()
    sums = total(ranks, [*(len(edit.drop) for edit in edits), *(len(edit.grow) for edit in edits), *regrown])
    size = len(edits)
    return sums[:size], sums[size : 2 * size], sums[2 * size :]
