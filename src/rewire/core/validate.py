"""Checks of what parts return, made before anything is changed: each error names the part, the layer and what is wrong.

On several ranks, a mistake that only one of them sees raises on all of them, so that none waits for another: a rank
sends ``-1`` in place of a count. The checks of ``k`` positions take O(k log nnz) time.
"""

import operator
from collections.abc import Callable, Sequence
from numbers import Real
from typing import TypeGuard, TypeVar

import torch
from torch import Tensor

from rewire.core.layer import Layer, LayerSpec, droppable
from rewire.core.protocols import Allocate, Birth, Curve, Drop, Grow, Schedule, Start
from rewire.core.ranks import ALONE, Ranks
from rewire.core.score import ScoreLike, Signal, check_score
from rewire.core.topology import contains
from rewire.core.views import Edited

_One = TypeVar("_One", Layer, LayerSpec, Edited)

# What each part of a method must have besides __call__, and why.
_MEMBERS = {
    "signals": "a frozenset of the signals that it reads (empty if it reads none)",
    "most": "a method that returns the largest number for each layer, known before the optimizer's step",
    "exact": "whether it drops exactly the number of weights that it is asked to",
}
REQUIRED = {"drop": ("signals", "most", "exact"), "allocate": ("signals", "most"), "grow": ("signals",)}


def check_members(role: str, part: object) -> None:
    """Raise if a part is not callable or lacks something that its role needs."""
    if not callable(part):
        raise TypeError(f"{role} must be a part (something to call), not {part!r}")
    if isinstance(part, type):
        raise TypeError(f"{role} must be an instance, not the class {part.__qualname__}: call it")
    for member in REQUIRED.get(role, ()):
        if not hasattr(part, member):
            raise TypeError(f"{role}={part!r} has no `{member}`: {_MEMBERS[member]}")
    signals: object = getattr(part, "signals", frozenset())
    if role not in REQUIRED:
        return
    if not isinstance(signals, frozenset):
        raise TypeError(f"the `signals` of {role}={part!r} must be a frozenset, not {signals!r}")
    for signal in signals:
        if isinstance(signal, Signal):
            continue
        if isinstance(signal, type) or not isinstance(signal, ScoreLike):
            raise TypeError(f"{role}={part!r} declares {signal!r}, which is neither a Signal nor a Score")
        check_score(signal)


def check_constraint(constraint: object) -> None:
    """Raise if something that is needed of a constraint is missing."""
    if isinstance(constraint, type):
        raise TypeError(f"constraint must be an instance, not the class {constraint.__qualname__}: call it")
    for member in ("tiles", "whole", "limit", "even", "least_salient", "signals"):
        if not hasattr(constraint, member):
            raise TypeError(f"constraint={constraint!r} has no `{member}`: see rewire.core.structure.Constraint")


def check_fraction(schedule: Schedule, step: int) -> float | None:
    """The fraction of the weights to move at a step, if it is a share, or ``None`` if there is no rewiring."""
    fraction: object = schedule(step)
    if fraction is None:
        return None
    if not _is_share(fraction):
        raise ValueError(
            f"schedule={schedule!r} must return the fraction of the weights to move, a number in [0, 1], or None, but "
            f"returns {fraction!r} at step {step}"
        )
    return float(fraction)


def check_density(curve: Curve, step: int) -> float:
    """The density at a step, if it is a share of weights that can exist."""
    density: object = curve(step)
    if not _is_share(density) or density == 0:
        raise ValueError(
            f"density={curve!r} must return the share of weights that exist, a number in (0, 1], but returns "
            f"{density!r} at step {step}"
        )
    return float(density)


def _is_share(value: object) -> TypeGuard[float]:
    """Whether a value is a number in [0, 1]; those of NumPy are."""
    return not isinstance(value, bool) and isinstance(value, Real) and 0 <= float(value) <= 1


def check_drop(part: Drop, dropped: Sequence[Tensor], layers: Sequence[Layer], n: int, ranks: Ranks) -> list[int]:
    """How many weights are dropped from each layer over all ranks, if the positions are right."""
    rows = _checked(f"drop={part!r}", dropped, layers, ranks, _active_problem)
    counts = [sum(column) for column in zip(*rows, strict=True)]
    for layer, count, most in zip(layers, counts, part.most(layers, n), strict=True):
        if count > min(most, droppable(layer)):
            limit = f"its `most` allows {most}" if most < droppable(layer) else f"{droppable(layer)} can be dropped"
            reason = "it is frozen" if layer.frozen else f"it has {layer.nnz} weights and keeps at least one"
            raise ValueError(f"drop={part!r} drops {count} weights of {layer.name}, but {limit} ({reason})")
    if part.exact and sum(counts) != n:
        raise ValueError(f"drop={part!r} is `exact` and must drop {n} weights, but drops {sum(counts)}: {counts}")
    return counts


def check_allocation(part: Allocate, answer: object, after: Sequence[Edited], n: int) -> list[int]:
    """The counts as integers, if they sum to ``n`` and fit into the layers."""
    counts = check_counts(f"allocate={part!r}", answer, after)
    for layer, count in zip(after, counts, strict=True):
        if count > layer.room:
            raise ValueError(
                f"allocate={part!r} gives {count} weights to {layer.name}, which has room for {layer.room}"
            )
    if sum(counts) != n:
        raise ValueError(f"allocate={part!r} must divide {n} weights, but its counts sum to {sum(counts)}: {counts}")
    return counts


def check_counts(name: str, counts: object, layers: Sequence[Layer]) -> list[int]:
    """The counts as a list of integers, one for each layer and none of them negative."""
    if not isinstance(counts, Sequence) or len(counts) != len(layers):
        raise ValueError(f"{name} must return a list of {len(layers)} integers, one for each layer, not {counts!r}")
    integers = []
    for layer, count in zip(layers, counts, strict=True):
        try:
            integers.append(operator.index(count))
        except TypeError:
            raise ValueError(f"{name} must return integers, not {count!r} for {layer.name}") from None
        if integers[-1] < 0:
            raise ValueError(f"{name} must not return a negative number, but returns {count} for {layer.name}")
    return integers


def check_growth(
    part: Grow, grown: Sequence[Tensor], after: Sequence[Edited], counts: Sequence[int], ranks: Ranks
) -> list[int]:
    """How many weights of each layer are grown on lower ranks, if the positions are right."""
    rows = _checked(f"grow={part!r}", grown, after, ranks, _free_problem)
    for layer, wanted, column in zip(after, counts, zip(*rows, strict=True), strict=True):
        if sum(column) != wanted:
            raise ValueError(f"grow={part!r} must grow {wanted} weights in {layer.name}, but grows {sum(column)}")
    return [sum(column[: ranks.index]) for column in zip(*rows, strict=True)]


def check_birth(part: Birth, values: Sequence[Tensor], after: Sequence[Edited], counts: Sequence[int]) -> None:
    """Raise unless there is a value for each grown weight that is finite once it has the dtype of the weights."""
    for layer, count, born in zip(after, counts, values, strict=True):
        if not isinstance(born, Tensor) or born.shape != (count,):
            raise ValueError(
                f"birth={part!r} must return a tensor of {count} values for {layer.name}, not {_described(born)}"
            )
        dtype = _weight_dtype(layer)
        if born.is_meta or (born.is_complex() and not dtype.is_complex):
            raise ValueError(
                f"birth={part!r} must return real values for {layer.name}, whose weights are "
                f"{_short(dtype)}, not {_described(born)}"
            )
        if not bool(born.to(dtype).isfinite().all()):
            raise ValueError(f"birth={part!r} returns values for {layer.name} that are not finite as {_short(dtype)}")


def _weight_dtype(layer: Layer) -> torch.dtype:
    """The dtype of a layer's weights: a view may compute its signals in a wider one."""
    while (base := getattr(layer, "base", None)) is not None:
        layer = base
    return layer.read(Signal.WEIGHT).dtype


def check_start(part: Start, positions: Sequence[Tensor], specs: Sequence[LayerSpec], n: int) -> list[Tensor]:
    """The positions, if they are ``n`` in all, and at least one in each layer."""
    rows = _checked(
        f"start={part!r}", positions, specs, ALONE, lambda found, spec: _range_problem(found, range(spec.numel))
    )
    for spec, count in zip(specs, rows[0], strict=True):
        if count == 0:
            raise ValueError(f"start={part!r} places no weight in {spec.name}: every layer needs at least one")
    if sum(rows[0]) != n:
        raise ValueError(f"start={part!r} must place {n} weights, but places {sum(rows[0])}: {rows[0]}")
    return list(positions)


def _checked(
    name: str,
    lists: Sequence[Tensor],
    layers: Sequence[_One],
    ranks: Ranks,
    problem: Callable[[Tensor, _One], str | None],
) -> list[list[int]]:
    """The lengths of the lists on every rank; raises on all ranks if one of them sees a problem."""
    if not isinstance(lists, Sequence) or len(lists) != len(layers):
        what = f"{len(lists)} lists" if isinstance(lists, Sequence) else _described(lists)
        problems: list[str | None] = [f"expected {len(layers)} tensors, one for each layer, not {what}"] * len(layers)
        lists = ()
    else:
        problems = [
            _type_problem(positions) or problem(positions, layer)
            for positions, layer in zip(lists, layers, strict=True)
        ]
    counts = [-1 if sentence else len(positions) for positions, sentence in zip(lists, problems, strict=False)]
    rows = ranks.gather(counts + [-1] * (len(layers) - len(counts)))
    for layer, sentence in zip(layers, problems, strict=True):
        if sentence:
            raise ValueError(f"{name} returns wrong positions for {layer.name}: {sentence}")
    for rank, row in enumerate(rows):
        for layer, count in zip(layers, row, strict=True):
            if count < 0:
                raise ValueError(f"{name} returns wrong positions for {layer.name} on rank {rank}: see its error there")
    return rows


def _type_problem(positions: object) -> str | None:
    if isinstance(positions, Tensor) and positions.dtype == torch.int64 and positions.dim() == 1:
        return f"expected positions, not {_described(positions)}" if positions.is_meta else None
    return f"expected a one-dimensional int64 tensor, not {_described(positions)}"


def _range_problem(positions: Tensor, span: range) -> str | None:
    """Whether positions are sorted, distinct and inside of a span."""
    if not len(positions):
        return None
    unordered = (positions.diff() <= 0).nonzero()
    if len(unordered):
        first, second = positions[int(unordered[0]) :][:2].tolist()
        what = f"{first} occurs twice" if first == second else f"{second} comes after {first}"
        return f"positions must be sorted and distinct, but {what}"
    first, last = int(positions[0]), int(positions[-1])
    if first >= span.start and last < span.stop:
        return None
    outside = first if first < span.start else last
    return f"position {outside} is not one of the layer's, {span.start} to {span.stop - 1}"


def _active_problem(positions: Tensor, layer: Layer) -> str | None:
    """Whether positions to drop are active."""
    problem = _range_problem(positions, layer.span)
    if problem or not len(positions):
        return problem
    active = contains(layer.active(), positions)
    return None if bool(active.all()) else f"there is no weight at position {int(positions[~active][0])}"


def _free_problem(positions: Tensor, layer: Edited) -> str | None:
    """Whether positions to grow are free after the drop."""
    problem = _range_problem(positions, layer.span)
    if problem or not len(positions):
        return problem
    if layer.frozen:
        return "the layer is frozen"
    occupied = contains(layer.occupied(), positions)
    if not bool(occupied.any()):
        return None
    hint = "" if layer.regrow else ", or one was just dropped and may not come back at once"
    return f"there is a weight at position {int(positions[occupied][0])} already{hint}"


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        device = " on the meta device, which holds no values" if value.is_meta else ""
        return f"a tensor of {_short(value.dtype)} and shape {tuple(value.shape)}{device}"
    return repr(value)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
