"""How a packed layer gets another topology: values, positions, gradient and optimizer state are resized together."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rewire.core.topology import Edit
from rewire.nn.packed_base import resize
from rewire.stores.optimizer.optimizers import Optimizers
from rewire.stores.optimizer.rules import Rule, start_value
from rewire.stores.packed_layer import PackedLayer
from rewire.stores.rearrange import Rearrangement


def apply_edit(layer: PackedLayer, edit: Edit, optimizers: Optimizers, group: Mapping[str, object]) -> None:
    """Move a layer to its new topology. ``group``: the options of its parameter in the optimizer.

    Everything that depends on the old size is read first: the gradient, which torch drops when the parameter is
    resized, and the newborn weights' state, which some optimizers derive from the state of the others.
    """
    before, grad = layer.active(), layer.parameter.grad
    move = Rearrangement(before, edit)
    layer.link.edit_copies(edit)
    newborn = [value for _, value in optimizers.start_values(layer.parameter, group)]
    optimizers.change_state(layer.parameter, move)
    resize(layer.parameter, move(layer.parameter.detach(), edit.value))
    for (_, state, _), value in zip(optimizers.entries(layer.parameter), newborn, strict=True):
        state[move.grown_slots] = value
    layer.module.weight_positions = move(before, edit.grow).to(layer.module.weight_positions.dtype)
    layer.state_positions = layer.gradient_positions = layer.module.weight_positions
    if grad is not None:
        layer.parameter.grad = move(grad)


def rearrange_state(layer: PackedLayer, optimizers: Optimizers, group: Mapping[str, object]) -> bool:
    """After loading: move optimizer state of the old positions to the new ones. Returns whether any weight is new.

    What belongs to a position in both topologies stays with it; a new weight begins as a newborn one does.
    """
    before, after = layer.state_positions.long().to(layer.parameter.device), layer.active()
    layer.state_positions = layer.module.weight_positions
    if torch.equal(before, after):
        return False
    drop, grow = before[~torch.isin(before, after)], after[~torch.isin(after, before)]
    move = Rearrangement(before, Edit(drop, grow, torch.zeros(len(grow))))

    def with_newborns(state: Tensor, rule: Rule | None) -> Tensor:
        moved = move(state)
        moved[move.grown_slots] = start_value(rule, group)
        return moved

    optimizers.change_state_of_shape(layer.parameter, before.shape, with_newborns)
    return len(grow) > 0
