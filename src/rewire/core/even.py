"""Equally many weights in every tile that has any: how many, which tiles, and what has to go for it."""

from collections.abc import Collection, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from rewire.core.layer import Signal
from rewire.core.ranks import Ranks, total
from rewire.core.score import AnySignal
from rewire.core.tile_views import limited
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
    ranks: Ranks,
) -> tuple[list[Edited], list[int]]:
    """The layers with further drops where a tile has too many weights, limits for growth, and how many each grows.

    ``counts``: how many new weights the allocation gives to each layer.
    """
    rewired = [i for i, layer in enumerate(after) if not layer.frozen]
    layers, cuts = [after[i] for i in rewired], [tiles[i] for i in rewired]
    totals = [after[i].nnz + counts[i] for i in rewired]
    live = _live_tiles(layers, cuts, totals, least_salient, signals, ranks)
    alive = total(ranks, (int(marks.sum()) for marks in live))
    rounds = whole_rounds(totals, alive, [cut.size for cut in cuts])
    limits = [k * marks.long() for k, marks in zip(rounds, live, strict=True)]
    trimmed = _without_excess(layers, cuts, limits, ranks)
    growing = [k * count - layer.nnz for k, count, layer in zip(rounds, alive, trimmed, strict=True)]
    views = limited(trimmed, cuts, limits, ranks)
    crowded = [view.room < k for view, k in zip(views, growing, strict=True)]
    if any(crowded):  # almost dense: there is no other place than where they were
        for layer, regrow in zip(trimmed, crowded, strict=True):
            layer.regrow |= regrow
        views = limited(trimmed, cuts, limits, ranks)
    settled, grown = list(after), [0] * len(after)
    for i, view, k in zip(rewired, views, growing, strict=True):
        settled[i], grown[i] = view, k
    return settled, grown


def _live_tiles(
    layers: Sequence[Edited],
    tiles: Sequence[Tiles],
    totals: Sequence[int],
    least_salient: float,
    signals: Collection[AnySignal],
    ranks: Ranks,
) -> list[Tensor]:
    """Which tiles have weights after the rewiring: those that have some now, less those with too few salient weights.

    Salient are the weights that survive the drop, and as many inactive ones of largest signal as were dropped. A tile
    is emptied if it has fewer than ``least_salient`` times the weights that each tile has now.
    """
    before = [cut.counts(layer.base.active()) for layer, cut in zip(layers, tiles, strict=True)]
    live = [counts > 0 for counts in before]
    if not least_salient:
        return live
    salient = _salient(layers, tiles, signals, ranks)
    fullest = zip(*ranks.gather([int(counts.max()) if len(counts) else 0 for counts in before]), strict=True)
    stay = [
        marks & (count >= least_salient * max(most)) for marks, count, most in zip(live, salient, fullest, strict=True)
    ]
    # So many tiles can hold the weights of the layer.
    needed = [max(-(-weights // cut.size), 1) for weights, cut in zip(totals, tiles, strict=True)]
    staying = total(ranks, (int(marks.sum()) for marks in stay))
    short = [k if count < k else 0 for count, k in zip(staying, needed, strict=True)]
    ranked = [
        ScoredPositions(torch.where(marks, count, -1).double(), torch.arange(len(marks), device=marks.device))
        for marks, count in zip(live, salient, strict=True)
    ]
    best = ranks.largest(ranked, short)
    return [
        torch.zeros_like(marks).index_fill(0, top.positions, True) & marks if k else stays
        for marks, stays, top, k in zip(live, stay, best, short, strict=True)
    ]


def _salient(
    layers: Sequence[Edited], tiles: Sequence[Tiles], signals: Collection[AnySignal], ranks: Ranks
) -> list[Tensor]:
    """How many salient weights each tile has."""
    (signal,) = signals
    lost = [layer.lost for layer in layers]
    candidates = [layer.base.top_inactive(signal, k) for layer, k in zip(layers, lost, strict=True)]
    return [
        cut.counts(layer.active()) + cut.counts(top.positions)
        for layer, cut, top in zip(layers, tiles, ranks.largest(candidates, lost), strict=True)
    ]


def _without_excess(
    layers: Sequence[Edited], tiles: Sequence[Tiles], limits: Sequence[Tensor], ranks: Ranks
) -> list[Edited]:
    """The layers with the lowest magnitudes dropped where a tile has more weights than its limit."""
    excess = []
    for layer, cut, limit in zip(layers, tiles, limits, strict=True):
        active = layer.active()
        kept = cut.largest(ScoredPositions(layer.read(Signal.WEIGHT).abs(), active), limit)
        excess.append(active[~torch.isin(active, kept.positions)])
    return [
        Edited(layer.base, torch.cat([layer.drop, more]).sort().values, layer.index, layer.regrow, layer.lost + count)
        for layer, more, count in zip(layers, excess, total(ranks, map(len, excess)), strict=True)
    ]
