"""Where layers are during a rewiring: on the rank that holds their shard, or as a whole on one rank.

``fully_shard`` cuts layers by rows. Some questions have no answer on a shard: which block to drop if the cut goes
through blocks, or how many short paths lead from one neuron to another. Such a layer goes to one rank for the length of
the rewiring; the other ranks hold nothing of it meanwhile. For all parts that is a sharding as any other.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from rewire.core.layer import Layer, Signal, numel, read_score, spec_of
from rewire.core.ranks import ALONE, Ranks
from rewire.core.score import AnySignal, basic_signals
from rewire.core.structure import Constraint
from rewire.core.topology import Edit, ScoredPositions


class WholeLayer:
    """A sharded layer as one rank holds it for the length of a rewiring: all of it on that rank, nothing on the others.

    Building it is a collective. ``active_signals`` can be read at the active positions, ``inactive_signals`` at the
    others, where they are as they were before the optimizer's step.
    """

    def __init__(
        self,
        base: Layer,
        owner: int,
        active_signals: Sequence[Signal],
        inactive_signals: Sequence[AnySignal],
        ranks: Ranks,
    ) -> None:
        self.base, self.spec, self.nnz = base, spec_of(base), base.nnz
        self.name, self.shape, self.frozen = base.name, base.shape, base.frozen
        everything = [base.active(), *(_as_integers(base.read(signal)) for signal in active_signals)]
        kinds = [base.read(signal).dtype for signal in active_signals]
        for signal in inactive_signals:
            top = base.top_inactive(signal, numel(base))
            everything += [top.positions, _as_integers(top.values)]
            kinds.append(top.values.dtype)
        device = base.active().device
        self.span = range(numel(base)) if ranks.index == owner else range(0) if ranks.index < owner else _end(base)
        joined = iter(
            numbers.to(device)[: len(numbers) if ranks.index == owner else 0] for numbers in ranks.join(everything)
        )
        kind = iter(kinds)
        self._active = next(joined)
        self._values = {signal: _as_floats(next(joined), next(kind)) for signal in active_signals}
        self._inactive: dict[AnySignal, ScoredPositions] = {}
        for signal in inactive_signals:
            positions = next(joined)
            self._inactive[signal] = ScoredPositions(_as_floats(next(joined), next(kind)), positions)

    def active(self) -> Tensor:
        """All active positions, or none on another rank."""
        return self._active

    def read(self, signal: AnySignal) -> Tensor:
        """The signal at the active positions."""
        return self._values[signal] if isinstance(signal, Signal) else read_score(self, signal)

    def read_at(self, signal: AnySignal, positions: Tensor) -> Tensor:
        """The signal at sorted inactive positions."""
        return self._inactive[signal].at(positions)

    def top_inactive(self, signal: AnySignal, k: int, floor: float = 0.0) -> ScoredPositions:
        """The ``k`` inactive positions of largest ``|signal|``, of those at or above ``floor`` and not zero."""
        largest = self._inactive[signal].largest(k)
        return largest.where(largest.values >= floor)


class Arrangement:
    """The layers of a rewiring, some of them as a whole on one rank."""

    def __init__(self, held: Sequence[Layer], layers: Sequence[Layer], ranks: Ranks) -> None:
        self._held, self.layers, self._ranks = held, layers, ranks

    def returned(self, edits: Sequence[Edit]) -> list[Edit]:
        """What each rank has to edit of its own shards."""
        moved = [i for i, layer in enumerate(self.layers) if isinstance(layer, WholeLayer)]
        lists = [numbers for i in moved for numbers in (edits[i].drop, edits[i].grow, _as_integers(edits[i].value))]
        joined = self._ranks.join(lists) if moved else []
        result = list(edits)
        for at, i in enumerate(moved):
            drop, grow, value = (numbers.to(edits[i].drop.device) for numbers in joined[3 * at : 3 * at + 3])
            span = self._held[i].span
            mine = _part(grow, span)
            values = _as_floats(value, edits[i].value.dtype)
            result[i] = Edit(drop[_part(drop, span)], grow[mine], values[mine])
        return result


def arrange(
    layers: Sequence[Layer],
    ranks: Ranks,
    constraint: Constraint | None,
    whole_layers: bool,
    active_signals: Collection[Signal],
    ranked_signals: Collection[AnySignal],
) -> Arrangement:
    """Bring layers that cannot be rewired in shards to one rank each.

    Those are all, on the same rank, if a part needs ``whole_layers``; else those whose shards cut a tile of the
    constraint, in turn on all ranks.
    """
    if ranks is ALONE or (constraint is None and not whole_layers):
        return Arrangement(layers, layers, ranks)
    cut = [constraint is not None and not constraint.tiles(spec_of(layer)).fits(layer.span) for layer in layers]
    rows = ranks.gather([int(whole_layers or is_cut) for is_cut in cut])
    of_active = sorted({*active_signals, Signal.WEIGHT}, key=repr)
    of_inactive = sorted(
        (signal for signal in ranked_signals if basic_signals([signal]) & {Signal.GRAD, Signal.MOMENTUM}), key=repr
    )
    arranged: list[Layer] = []
    for index, (layer, column) in enumerate(zip(layers, zip(*rows, strict=True), strict=True)):
        if any(column):
            owner = 0 if whole_layers else index % len(rows)
            arranged.append(WholeLayer(layer, owner, of_active, of_inactive, ranks))
        else:
            arranged.append(layer)
    return Arrangement(layers, arranged, ranks)


def _end(layer: Layer) -> range:
    """An empty range after all positions of a layer."""
    return range(numel(layer), numel(layer))


def _part(positions: Tensor, span: range) -> slice:
    """Which of the sorted positions are in a range."""
    ends = torch.tensor([span.start, span.stop], device=positions.device)
    return slice(*torch.searchsorted(positions, ends).tolist())


def _as_integers(values: Tensor) -> Tensor:
    """Floating-point numbers as the integers that have the bits of their doubles: ranks exchange integers."""
    return values.double().view(torch.int64)


def _as_floats(integers: Tensor, kind: torch.dtype) -> Tensor:
    return integers.view(torch.float64).to(kind)
