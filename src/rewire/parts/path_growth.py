"""Growth by topology alone: missing links that close many short paths between well-connected neighbours (CHT)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rewire.core.layer import Context, LayerSpec, Signal, numel
from rewire.core.score import AnySignal
from rewire.core.topology import ScoredPositions
from rewire.core.views import Edited
from rewire.parts.collectives import Collectives, Gather, Select
from rewire.parts.grow import fill_at_random
from rewire.parts.soft_drop import gumbel


@dataclass(frozen=True)
class ShortPaths:
    """A sample of the missing links of a linear layer, drawn in proportion to their CH3-L3 score; reads no gradient.

    Without replacement. Links with a score of zero are grown at random if there are too few others.
    ``soft=False`` takes the links of largest score (CHT).
    """

    soft: bool = True
    whole_layers: ClassVar[bool] = True

    @property
    def signals(self) -> frozenset[AnySignal]:
        """Reads no signal."""
        return frozenset()

    def collectives(self, layers: int) -> Collectives:
        """A selection of scores in each layer, one after the other, and a random draw if too few are not zero."""
        return [Select(1, 1, Signal.WEIGHT, times=layers, itemsize=8), Gather(1, times=2 * layers)]

    def refuse(self, specs: Sequence[LayerSpec]) -> None:
        """Raise unless all layers are linear."""
        for spec in specs:
            if len(spec.shape) != 2:
                raise ValueError(
                    f"{spec.name} has shape {tuple(spec.shape)}: {self!r} scores the links between the neurons of "
                    "linear layers, and a convolution shares its weights between places; leave it dense with exclude="
                )

    def __call__(self, layer: Edited, k: int, ctx: Context) -> Tensor:
        """Score the links that are missing after the drop, then draw."""
        if k == 0:
            return layer.drop[:0]
        return fill_at_random(layer, self._candidates(layer, ctx), k, k, ctx)

    def _candidates(self, layer: Edited, ctx: Context) -> ScoredPositions:
        """The missing links with a score, and the keys by which they are ranked; none on ranks without the layer."""
        if not len(layer.span):
            return ScoredPositions(torch.empty(0, dtype=torch.float64, device=layer.drop.device), layer.drop[:0])
        links = torch.zeros(numel(layer), dtype=torch.bool, device=layer.drop.device)
        links[layer.active()] = True
        scores = ch3_l3(links.view(-1, layer.shape[-1])).flatten()
        scores[layer.occupied()] = 0.0
        candidates = scores.nonzero().squeeze(1)
        keys = scores[candidates]
        if self.soft:
            noise = gumbel(numel(layer), ctx.generator("paths", layer.index))
            keys = keys.log() + noise[candidates.cpu()].to(keys.device)
        return ScoredPositions(keys, candidates)


def ch3_l3(links: Tensor) -> Tensor:
    """The CH3-L3 score of every missing link of a bipartite graph, zero for those that exist.

    ``links``: which row is linked with which column, ``(rows, columns)`` bool. A missing link ``(u, v)`` scores
    ``1 / sqrt(e(a) e(b))`` for every path ``u - b - a - v`` of three links. ``e`` counts the links of a node that leave
    the local community of ``u`` and ``v`` (their neighbours on such paths), plus one.

    >>> ch3_l3(torch.tensor([[True, False, False], [True, True, True]]))
    tensor([[0.0000, 0.7071, 0.7071],
            [0.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    matrix = links.double()
    # A row a on a path has one link to v, and shares[u, a] links to neighbours of u; the others leave the community.
    row_shares, column_shares = matrix @ matrix.t(), matrix.t() @ matrix
    leaving_row = (matrix.sum(1) - row_shares).clamp(min=1).rsqrt()
    leaving_column = (matrix.sum(0)[:, None] - column_shares).clamp(min=1).rsqrt()
    scores = torch.zeros_like(matrix)
    for u, neighbours in enumerate(links):
        near = neighbours.nonzero().squeeze(1)
        paths = (matrix[:, near] * leaving_row[u][:, None]).t() @ matrix
        scores[u] = (paths * leaving_column[near]).sum(0)
    return scores.masked_fill_(links, 0.0)
