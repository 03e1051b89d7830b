"""The cost of rewiring under FSDP2 what has no answer on a shard: constraints, and layers that go to one rank.

See ``core.arrangement`` and ``core.structure``, whose collectives are counted here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rewire.core.layer import LayerSpec, Signal
from rewire.core.method import Method
from rewire.core.score import basic_signals
from rewire.parts.collectives import Collectives, Gather, Select


@dataclass(frozen=True)
class Moved:
    """A layer that goes to one rank: ``owner``. Positions and values count as one number each."""

    owner: int
    nnz: float
    lists: int  # of numbers that travel
    numbers: float  # that the rank with the largest shard sends
    in_all: float  # that the owner holds


def moved_layers(method: Method, specs: Sequence[LayerSpec], ranks: int) -> list[Moved]:
    """The layers that leave their shards for a rewiring, if all shards have the density of the network."""
    density = method.density(0)
    active = len({*method.signals, Signal.WEIGHT})
    inactive = sum(bool(basic_signals([signal]) & {Signal.GRAD, Signal.MOMENTUM}) for signal in method.ranked_signals)

    def numbers(positions: int) -> float:
        """At each active position and each inactive one: the position and its signals."""
        return positions * (density * (1 + active) + (1 - density) * 2 * inactive)

    return [
        Moved(
            owner=0 if method.needs_whole_layers else index % ranks,
            nnz=density * spec.numel,
            lists=1 + active + 2 * inactive,
            numbers=numbers(_rows_of_a_shard(spec, ranks) * spec.shape[1:].numel()),
            in_all=numbers(spec.numel),
        )
        for index, spec in enumerate(specs)
        if method.needs_whole_layers or _cuts_a_tile(method, spec, ranks)
    ]


def structure_collectives(
    method: Method, layers: int, specs: Sequence[LayerSpec] | None, ranks: int, fraction: float
) -> Collectives:
    """What a constraint, and layers that move to one rank, add to the collectives of the parts."""
    constraint = method.constraint
    if constraint is None and not method.needs_whole_layers:
        return []
    if specs is None:
        reason = f"constraint={constraint!r}" if constraint is not None else f"grow={method.grow!r}"
        raise ValueError(
            f"with {reason} some layers are sent to one rank, which depends on their shapes: give a list of "
            f"rewire.core.LayerSpec, such as [layer.spec for layer in rewirer.layers], and not their number, {layers}"
        )
    calls: Collectives = [Gather(layers)]  # Whose shards cut a tile?
    if constraint is not None and not constraint.whole:
        # How much room is there? Which tile got too many? How many positions are free, layer by layer?
        calls += [Gather(layers, times=2), Gather(1, times=layers)]
    if constraint is not None and constraint.even:
        calls += [Gather(layers, times=4)]  # How many tiles live, weights are dropped besides, and room is there now?
        if constraint.least_salient:
            (signal,) = constraint.signals
            tiles = Select(layers, layers, signal, itemsize=8)  # if too few stay
            calls += [Select(layers, layers, signal), tiles, Gather(layers, times=2)]
    return calls + _moves(moved_layers(method, specs, ranks), ranks, fraction)


def _moves(moved: Sequence[Moved], ranks: int, fraction: float) -> Collectives:
    """To the owners one layer after the other, and all edits back: what goes, what comes, and its values."""
    if not moved:
        return []
    calls: Collectives = []
    for layer in moved:
        calls += [Gather(layer.lists), Gather(round(layer.numbers))]
    edits = [sum(3 * fraction * layer.nnz for layer in moved if layer.owner == rank) for rank in range(ranks)]
    return [*calls, Gather(3 * len(moved)), Gather(round(max(edits)))]


def structure_memory(method: Method, specs: Sequence[LayerSpec], ranks: int, width: int) -> int:
    """The bytes that a rewiring takes for a moment because of a constraint, or of layers that one rank holds.

    ``width``: the bytes of a weight. Under a constraint, all gradients of inactive weights are kept for the length of
    the step; where tiles have limits, those of one layer at a time are ranked within their tiles.
    """
    if method.constraint is None and not method.needs_whole_layers:
        return 0
    inactive = [(1 - method.density(0)) * _rows_of_a_shard(spec, ranks) * spec.shape[1:].numel() for spec in specs]
    moved = moved_layers(method, specs, ranks)
    kept = [sum(layer.in_all for layer in moved if layer.owner == rank) for rank in range(ranks)]
    # Numbers of eight bytes from all ranks: as received, in order, and converted; one layer after the other.
    received = 24 * ranks * max((layer.numbers for layer in moved), default=0.0)
    captured = (8 + width) * len(method.captured_signals) * sum(inactive)
    limited = method.constraint is not None and not method.constraint.whole
    ranking = 136 * max(inactive) if limited else 0
    return round(max(kept) * (8 + width) / 2 + received + captured + ranking)


def _rows_of_a_shard(spec: LayerSpec, ranks: int) -> int:
    """How many rows the first rank has, whose shard is the largest."""
    return -(-spec.shape[0] // ranks)


def _cuts_a_tile(method: Method, spec: LayerSpec, ranks: int) -> bool:
    """Whether a shard of the layer begins or ends inside of a tile."""
    if method.constraint is None:
        return False
    tiles, rows, row = method.constraint.tiles(spec), _rows_of_a_shard(spec, ranks), spec.shape[1:].numel()
    starts = [min(rank * rows, spec.shape[0]) * row for rank in range(ranks + 1)]
    return not all(tiles.fits(range(*ends)) for ends in pairwise(starts))
