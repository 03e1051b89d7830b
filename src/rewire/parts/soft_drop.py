"""Soft drops: which weights go is drawn, and weights of neurons that lead nowhere go with them (CHTs)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from rewire.core.layer import Context, Layer, LayerSpec, Signal, droppable, numel
from rewire.core.protocols import Curve, Drop
from rewire.core.score import AnySignal
from rewire.core.topology import ScoredPositions
from rewire.parts.apportion import apportion
from rewire.parts.collectives import Collectives, Select
from rewire.parts.density import Constant

PROPORTIONAL = Constant(1.0)


@dataclass(frozen=True)
class SoftLowest:
    """Each layer keeps a random sample of its weights, drawn in proportion to ``|score| ** sharpness``.

    Without replacement: the weight drawn first is kept with probability ``|score| ** sharpness / sum``, the next among
    the others, and so on. ``sharpness`` is a curve; the higher, the nearer to ``Lowest``.
    """

    score: AnySignal = Signal.WEIGHT
    sharpness: Curve = PROPORTIONAL
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.sharpness, Curve):
            raise TypeError(f"sharpness must be a curve such as Constant(2.0), not {self.sharpness!r}")
        if not all(end >= 0 for end in self.sharpness.ends()):
            raise ValueError(f"sharpness must be at least 0, which draws weights to keep uniformly: {self.sharpness!r}")

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The score."""
        return frozenset({self.score})

    def collectives(self, layers: int) -> Collectives:
        """A selection in each layer, among keys of eight bytes."""
        return [Select(layers, layers, self.score, itemsize=8)]

    def most(self, layers: Sequence[Layer], n: int) -> list[int]:
        """Exactly the layer's share of ``n``."""
        active = [0 if layer.frozen else layer.nnz for layer in layers]
        return apportion(n, active, [droppable(layer) for layer in layers])

    def __call__(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[Tensor]:
        """Add Gumbel noise to the logarithms: the largest sums are such a sample, and the lowest are dropped."""
        keys = [self._keys(layer, i, ctx) for i, layer in enumerate(layers)]
        lowest = ctx.ranks.largest(keys, self.most(layers, n))
        return [top.positions for top in lowest]

    def _keys(self, layer: Layer, index: int, ctx: Context) -> ScoredPositions:
        """The negated keys; every rank draws for the whole layer and takes those of its own positions."""
        active = layer.active()
        noise = gumbel(numel(layer), ctx.generator("drop", index))[active.cpu()].to(active.device)
        sharpness = self.sharpness(ctx.step)
        return ScoredPositions(
            -(sharpness * layer.read(self.score).abs().double().clamp(min=1e-300).log() + noise), active
        )


@dataclass(frozen=True)
class Percolated:
    """What another drop chooses, and all weights of neurons that then have no input or no output.

    ``chain``: the names of linear layers that follow one another; the outputs of each are the inputs of the next. First
    from the last layer to the first, weights to neurons without outputs; then onwards, weights from neurons without
    inputs. A layer never loses its last weight.
    """

    drop: Drop
    chain: tuple[str, ...]
    exact: ClassVar[bool] = False
    at_least: ClassVar[bool] = True

    @property
    def signals(self) -> frozenset[AnySignal]:
        """Those of the other drop."""
        return self.drop.signals

    @property
    def whole_layers(self) -> bool:
        """Whether sharded layers have to be brought to one rank: a chain is followed from layer to layer."""
        return bool(self.chain) or bool(getattr(self.drop, "whole_layers", False))

    def collectives(self, layers: int) -> Collectives:
        """Those of the other drop: the rest happens where the layers are."""
        asked: Collectives = getattr(self.drop, "collectives", lambda _: [])(layers)
        return asked

    def most(self, layers: Sequence[Layer], n: int) -> list[int]:
        """All but one, where neurons may be left without inputs or outputs."""
        chosen = self.drop.most(layers, n)
        return [
            droppable(layer) if layer.name in self.chain else count for layer, count in zip(layers, chosen, strict=True)
        ]

    def refuse(self, specs: Sequence[LayerSpec]) -> None:
        """Raise unless the layers of the chain are linear and fit together."""
        by_name = {spec.name: spec for spec in specs}
        for name in self.chain:
            if self.chain.count(name) > 1:
                raise ValueError(f"the chain {self.chain!r} names {name!r} twice: name each layer once")
            if name not in by_name:
                raise ValueError(f"the chain names {name!r}; the sparse layers are {', '.join(by_name)}")
            if len(by_name[name].shape) != 2:
                raise ValueError(f"{name} of the chain has shape {tuple(by_name[name].shape)}: only linear layers")
        for source, other in pairwise(self.chain):
            outputs, inputs = by_name[source].shape[0], by_name[other].shape[1]
            if outputs != inputs:
                raise ValueError(f"{source} has {outputs} outputs and {other}, the next in the chain, {inputs} inputs")

    def __call__(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[Tensor]:
        """Drop, then follow the chain back and forth."""
        dropped = self.drop(layers, n, ctx)
        index = {layer.name: i for i, layer in enumerate(layers)}
        chain = [index[name] for name in self.chain]
        kept = {i: layers[i].active()[~torch.isin(layers[i].active(), dropped[i])] for i in chain}
        for source, other in reversed(list(pairwise(chain))):
            used = torch.isin(_outputs(layers[source], kept[source]), _inputs(layers[other], kept[other]))
            kept[source] = _not_none(kept[source], used, layers[source])
        for source, other in pairwise(chain):
            reached = torch.isin(_inputs(layers[other], kept[other]), _outputs(layers[source], kept[source]))
            kept[other] = _not_none(kept[other], reached, layers[other])
        for i, positions in kept.items():
            active = layers[i].active()
            dropped[i] = active[~torch.isin(active, positions)]
        return dropped


def gumbel(size: int, generator: torch.Generator) -> Tensor:
    """Gumbel noise: the ``k`` largest of ``log(p) + noise`` are a sample without replacement in proportion to ``p``."""
    uniform = torch.rand(size, generator=generator, dtype=torch.float64).clamp_(min=1e-300)
    return -(-uniform.log()).log()


def _outputs(layer: Layer, positions: Tensor) -> Tensor:
    return positions // layer.shape[1]


def _inputs(layer: Layer, positions: Tensor) -> Tensor:
    return positions % layer.shape[1]


def _not_none(positions: Tensor, marks: Tensor, layer: Layer) -> Tensor:
    """The marked positions, or the first one if none is marked; all of a frozen layer."""
    if layer.frozen:
        return positions
    return positions[marks] if bool(marks.any()) else positions[:1]
