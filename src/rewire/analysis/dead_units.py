"""Empty neurons and inputs, and how small a layer is without them (table 4 of GGR's paper)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rewire.core.layer import LayerSpec
from rewire.model.select import endpoints, units


@dataclass(frozen=True)
class Units:
    """The outputs (neurons, channels) and inputs of a layer, and how many of them have no active weight."""

    neurons: int
    empty_neurons: int
    inputs: int
    empty_inputs: int
    remaining: int  # dense parameters of the layer when empty neurons and inputs are removed


def count_units(spec: LayerSpec, active: Tensor) -> Units:
    """Count the units of a layer from the flat positions of its active weights.

    >>> spec = LayerSpec("layer", torch.Size([3, 4]))
    >>> count_units(spec, torch.tensor([0, 1, 8]))  # outputs 0 and 2, inputs 0 and 1
    Units(neurons=3, empty_neurons=1, inputs=4, empty_inputs=2, remaining=4)
    """
    inputs, neurons = units(spec)
    sources, targets = endpoints(spec, active.cpu())
    used_in = torch.zeros(inputs, dtype=torch.bool)
    used_out = torch.zeros(neurons, dtype=torch.bool)
    used_in[sources], used_out[targets] = True, True
    # Each group of a grouped layer is a dense matrix of its own.
    per_group = used_in.view(spec.groups, -1).sum(1) * used_out.view(spec.groups, -1).sum(1)
    return Units(
        neurons=neurons,
        empty_neurons=int((~used_out).sum()),
        inputs=inputs,
        empty_inputs=int((~used_in).sum()),
        remaining=int(per_group.sum()) * spec.matrix[2:].numel(),
    )
