"""Where the weights of a model are: every layer that can be sparse, by its mask or positions; one without is dense."""

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
    """One layer: its shape, how many of its weights exist, and which of its units are used."""

    spec: LayerSpec
    nnz: int
    units: Units

    @property
    def density(self) -> float:
        """The share of the weights that exist."""
        return self.nnz / self.spec.numel


def masks(model: nn.Module) -> dict[str, Tensor]:
    """Which weights exist, by layer. If the model is sharded, all ranks must ask."""
    found = {one.spec: mask_in(one.module, one.attribute) for one in find_layers(unwrap(model), frozen=True)[0]}
    return {
        spec.name: torch.ones(spec.shape, dtype=torch.bool) if mask is None else whole(mask.detach()).cpu()
        for spec, mask in found.items()
    }


def densities(model: nn.Module) -> list[LayerDensity]:
    """Every layer in the order of the model.

    >>> densities(nn.Linear(4, 3))[0].nnz
    12
    """
    specs = {one.spec.name: one.spec for one in find_layers(unwrap(model), frozen=True)[0]}
    made = []
    for name, mask in masks(model).items():
        active = where_true(mask)
        made.append(LayerDensity(specs[name], len(active), count_units(specs[name], active)))
    return made
