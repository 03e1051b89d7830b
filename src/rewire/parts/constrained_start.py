"""The first weights under a constraint: as near to what a start places as the constraint admits."""

from collections.abc import Sequence
from math import lcm

import torch
from torch import Tensor

from rewire.core.even import whole_rounds
from rewire.core.layer import Context, LayerSpec
from rewire.core.protocols import Start
from rewire.core.structure import Constraint, tile_fault
from rewire.core.tiles import Tiles
from rewire.core.topology import ScoredPositions, topk_mask
from rewire.parts.apportion import apportion
from rewire.parts.start_from_weights import fitting_density


def refuse_budget(constraint: Constraint, specs: Sequence[LayerSpec], lowest: float, highest: float) -> None:
    """Raise if the constraint admits no network of these densities."""
    tiles = [constraint.tiles(spec) for spec in specs]
    weights, count = sum(spec.numel for spec in specs), sum(cut.count for cut in tiles)
    if constraint.limit is not None:
        most = sum(cut.count * constraint.limit for cut in tiles)
        if round(highest * weights) > most:
            raise ValueError(
                f"density {highest} asks for {round(highest * weights)} weights, and {constraint!r} admits {most} of "
                f"{weights}: density must be at most {fitting_density(most, weights)}"
            )
    fewest, needed, what = round(lowest * weights), len(specs), "every layer needs one weight"
    if constraint.whole:
        fewest, what = round(lowest * count), f"every layer needs one of its tiles, of which there are {count}"
    elif constraint.even:
        needed, what = count, f"every one of {count} outputs needs a weight"
    if fewest < needed:
        whole = count if constraint.whole else weights
        raise ValueError(
            f"density {lowest} leaves {fewest} where {constraint!r} needs {needed} ({what}): density must be at least "
            f"{fitting_density(needed, whole)}"
        )


def start_budget(
    constraint: Constraint, start: Start, specs: Sequence[LayerSpec], density: float, n: int, ctx: Context
) -> int:
    """How many weights a start has to place: ``n``, unless it gives positions and whole tiles are what is counted.

    Tiles of different layers may have different sizes, so a number of tiles is not a number of weights.
    """
    if not constraint.whole or not hasattr(start, "positions"):
        return n
    placed: list[Tensor] = start.positions(specs, ctx)
    tiles = _satisfied(constraint, placed, specs)
    count, total = (
        sum(len(positions) // cut.size for positions, cut in zip(placed, tiles, strict=True)),
        sum(t.count for t in tiles),
    )
    if count != round(density * total):
        raise ValueError(
            f"the start gives {count} of the {total} tiles of {constraint!r}, but the method's density at step 0 "
            f"allows {round(density * total)}: pass density={fitting_density(count, total)}"
        )
    return sum(map(len, placed))


def fit_start(
    constraint: Constraint,
    start: Start,
    positions: Sequence[Tensor],
    specs: Sequence[LayerSpec],
    density: float,
    ctx: Context,
) -> list[Tensor]:
    """The positions that the constraint admits, layer by layer.

    Each layer keeps its share of the weights, rounded to what is admitted. First come those that the start has placed:
    of tiles, those with most of them. Of equal ones, and to fill what is left, the largest weights are taken if the
    start reads weights (``reads_weights``), and random ones otherwise. A topology that is given stays as it is.
    """
    if getattr(start, "gives_positions", False):
        _satisfied(constraint, positions, specs)
        return list(positions)
    tiles = [constraint.tiles(spec) for spec in specs]
    counts = _counts(constraint, tiles, [len(placed) for placed in positions], density)
    fitted = []
    for i, (spec, placed) in enumerate(zip(specs, positions, strict=True)):
        keys = _keys(start, spec, placed, ctx, i)
        fitted.append(_chosen(constraint, tiles[i], keys, counts[i]))
    return fitted


def _satisfied(constraint: Constraint, positions: Sequence[Tensor], specs: Sequence[LayerSpec]) -> list[Tiles]:
    """The tiles of the layers; raises if positions that are given contradict the constraint."""
    tiles = [constraint.tiles(spec) for spec in specs]
    for spec, cut, placed in zip(specs, tiles, positions, strict=True):
        fault = tile_fault(constraint, cut, placed)
        if fault:
            raise ValueError(f"the topology that the start gives for {spec.name} does not fit: {fault}")
    return tiles


def _counts(constraint: Constraint, tiles: Sequence[Tiles], placed: Sequence[int], density: float) -> list[int]:
    """For each layer: its tiles, if they exist as a whole; weights of each tile, if they are even; else its weights."""
    most = [cut.count for cut in tiles]
    if constraint.whole:
        unit = lcm(*(cut.size for cut in tiles))  # shares in whole numbers: placed weights over the size of a tile
        shares = [count * (unit // cut.size) for count, cut in zip(placed, tiles, strict=True)]
        return apportion(round(density * sum(most)), shares, most, [1] * len(most))
    if constraint.even:
        return whole_rounds(placed, most, [cut.size for cut in tiles])
    caps = [cut.count * (constraint.limit or cut.size) for cut in tiles]
    return apportion(sum(placed), placed, caps, [1] * len(caps))


def _keys(start: Start, spec: LayerSpec, placed: Tensor, ctx: Context, index: int) -> Tensor:
    """A number for each position: at least 1 where the start has placed a weight, the others below 1."""
    if getattr(start, "reads_weights", False) and ctx.weights is not None:
        order = ctx.weights[index].detach().abs().flatten().cpu().argsort(stable=True)
        keys = torch.empty(spec.numel, dtype=torch.float64)
        keys[order] = torch.arange(spec.numel, dtype=torch.float64) / spec.numel
    else:
        keys = torch.rand(spec.numel, generator=ctx.generator("fit", index), dtype=torch.float64)
    keys[placed.cpu()] += 1.0
    return keys


def _chosen(constraint: Constraint, tiles: Tiles, keys: Tensor, count: int) -> Tensor:
    everything = ScoredPositions(keys, torch.arange(len(keys)))
    if constraint.whole:
        # The number of placed weights decides. The rest of the sum is less than the weight of one: it only breaks ties.
        marks = tiles.means((keys >= 1).double(), everything.positions)
        ties = tiles.means(keys % 1.0, everything.positions) / tiles.size
        return tiles.positions(topk_mask(marks + ties, count).nonzero().squeeze(1))
    limit = count if constraint.even else constraint.limit or tiles.size
    admitted = tiles.largest(everything, torch.full((tiles.count,), limit))
    return admitted.positions if constraint.even else admitted.largest(count).positions
