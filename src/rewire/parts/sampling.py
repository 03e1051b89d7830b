"""Random positions where no weight exists: the same on every rank, and in a run that was resumed."""

import torch
from torch import Tensor

from rewire.core.layer import Context, Layer, numel
from rewire.core.topology import distinct, nth_inactive


def sample_inactive(layer: Layer, ratio: float, index: int, ctx: Context) -> Tensor:
    """``ratio`` inactive positions for each weight of a layer, drawn uniformly and sorted; all, if there are fewer.

    ``index``: the layer's index in the network. One step and one layer have one sample, whenever it is drawn.
    """
    size = min(round(ratio * layer.nnz), numel(layer) - layer.nnz)
    return draw_free(layer.span, layer.active(), size, ctx, ctx.generator("sample", index))


def draw_free(span: range, occupied: Tensor, k: int, ctx: Context, generator: torch.Generator) -> Tensor:
    """``k`` positions of a layer that are not occupied, uniformly at random: those of them that are in ``span``.

    Every rank makes the same draw over the whole layer and keeps what is in its own shard.
    """
    if k == 0:
        return occupied[:0]
    free = [count for (count,) in ctx.ranks.gather([len(span) - len(occupied)])]
    first, last = sum(free[: ctx.ranks.index]), sum(free[: ctx.ranks.index + 1])
    drawn = distinct(sum(free), k, generator)
    drawn = drawn[(drawn >= first) & (drawn < last)] if len(free) > 1 else drawn
    return nth_inactive(drawn - first, occupied, span.start)
