"""Equally many weights in every tile that has any: how many, which tiles, and what has to go for it."""

from collections.abc import Collection, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from rewire.core.layer import Signal
from rewire.core.score import AnySignal
from rewire.core.tile_views import LimitedEdited
from rewire.core.tiles import Tiles
from rewire.core.topology import ScoredPositions
from rewire.core.views import Edited


def whole_rounds(totals: Sequence[int], tiles: Sequence[int], caps: Sequence[int]) -> list[int]:
    """How many weights each tile of a layer gets: at least one, at most the cap, in all no more than ``totals``.

    A layer gets as many rounds of one weight for each of its ``tiles`` as fit into its total. What is left over goes to
    the layers that miss the smallest share of another round, as long as a whole round fits.

    >>> whole_rounds([10, 11], tiles=[4, 3], caps=[9, 9])
    [2, 4]
    """
    rounds = [min(max(total // count, 1), cap) for total, count, cap in zip(totals, tiles, caps, strict=True)]
    left = sum(totals) - sum(k * count for k, count in zip(rounds, tiles, strict=True))

    def missing(i: int) -> Fraction:
        return Fraction((rounds[i] + 1) * tiles[i] - totals[i], tiles[i])

    while left < 0:
        shrinkable = [i for i, k in enumerate(rounds) if k > 1]
        if not shrinkable:
            raise ValueError(f"{sum(totals)} weights are not enough for one in each of {sum(tiles)} tiles")
        i = max(shrinkable, key=missing)
        rounds[i], left = rounds[i] - 1, left + tiles[i]
    while fitting := [i for i, k in enumerate(rounds) if k < caps[i] and tiles[i] <= left]:
        i = min(fitting, key=missing)
        rounds[i], left = rounds[i] + 1, left - tiles[i]
    return rounds


def settle_even(
    after: Sequence[Edited],
    tiles: Sequence[Tiles],
    counts: Sequence[int],
    least_salient: float,
    signals: Collection[AnySignal],
) -> tuple[list[Edited], list[int]]:
    """The layers with further drops where a tile has too many weights, limits for growth, and how many each grows.

    ``counts``: how many new weights the allocation gives to each layer.
    """
    rewired = [i for i, layer in enumerate(after) if not layer.frozen]
    totals = [after[i].nnz + counts[i] for i in rewired]
    live = [
        _live_tiles(after[i], tiles[i], total, least_salient, signals) for i, total in zip(rewired, totals, strict=True)
    ]
    rounds = whole_rounds(totals, [int(one.sum()) for one in live], [tiles[i].size for i in rewired])
    settled, grown = list(after), [0] * len(after)
    for i, marks, k in zip(rewired, live, rounds, strict=True):
        limits = k * marks.long()
        edited = _without_excess(after[i], tiles[i], limits)
        grown[i] = int(limits.sum()) - edited.nnz
        settled[i] = LimitedEdited(edited, tiles[i], limits)
        if settled[i].room < grown[i]:  # almost dense: there is no other place than where they were
            edited.regrow = True
            settled[i] = LimitedEdited(edited, tiles[i], limits)
    return settled, grown


def _live_tiles(
    layer: Edited, tiles: Tiles, total: int, least_salient: float, signals: Collection[AnySignal]
) -> Tensor:
    """Which tiles have weights after the rewiring: those that have some now, less those with too few salient weights.

    Salient are the weights that survive the drop, and as many inactive ones of largest signal as were dropped. A tile
    is emptied if it has fewer than ``least_salient`` times the weights that each tile has now.
    """
    before = tiles.counts(layer.base.active())
    live = before > 0
    if not least_salient:
        return live
    (signal,) = signals
    salient = tiles.counts(layer.active()) + tiles.counts(layer.base.top_inactive(signal, layer.lost).positions)
    stays = live & (salient >= least_salient * before.max())
    needed = max(-(-total // tiles.size), 1)  # so many tiles can hold the weights of the layer
    if int(stays.sum()) < needed:
        ranked = torch.where(live, salient, -1).double()
        best = torch.sort(ranked, descending=True, stable=True).indices[:needed]
        stays = torch.zeros_like(live).index_fill(0, best, True) & live
    return stays


def _without_excess(layer: Edited, tiles: Tiles, limits: Tensor) -> Edited:
    """The layer with the lowest magnitudes dropped where a tile has more weights than its limit."""
    active = layer.active()
    kept = tiles.largest(ScoredPositions(layer.read(Signal.WEIGHT).abs(), active), limits)
    excess = active[~torch.isin(active, kept.positions)]
    drop = torch.cat([layer.drop, excess]).sort().values
    return Edited(layer.base, drop, layer.index, layer.regrow, layer.lost + len(excess))
