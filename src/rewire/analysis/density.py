"""The topology of a model layer by layer: masks, densities and unit counts. A layer without a mask is dense."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rewire.analysis.dead_units import Units, count_units
from rewire.core.dense_ops import where_true
from rewire.core.layer import LayerSpec
from rewire.distributed.dtensor import whole
from rewire.model.select import find_layers, unwrap
from rewire.stores.convert import mask_in


@dataclass(frozen=True)
class LayerDensity:
    """One layer: its shape, how many of its weights exist, and how many of its units are used."""

    spec: LayerSpec
    nnz: int
    units: Units

    @property
    def density(self) -> float:
        """The share of the weights that exist."""
        return self.nnz / self.spec.numel


def masks(model: nn.Module) -> dict[str, Tensor]:
    """A bool mask for each layer, true where a weight exists. If the model is sharded, all ranks must call this."""
    by_spec = {
        layer.spec: mask_in(layer.module, layer.attribute) for layer in find_layers(unwrap(model), frozen=True)[0]
    }
    return {
        spec.name: torch.ones(spec.shape, dtype=torch.bool) if mask is None else whole(mask.detach()).cpu()
        for spec, mask in by_spec.items()
    }


def densities(model: nn.Module) -> list[LayerDensity]:
    """The density and the units of every Conv and Linear layer, in the order of the model.

    >>> densities(nn.Linear(4, 3))[0].nnz
    12
    """
    specs = {layer.spec.name: layer.spec for layer in find_layers(unwrap(model), frozen=True)[0]}
    layers = []
    for name, mask in masks(model).items():
        active = where_true(mask)
        layers.append(LayerDensity(specs[name], len(active), count_units(specs[name], active)))
    return layers
