"""How a rewiring changes a packed layer: values, positions, gradient and optimizer state are resized together."""

from collections.abc import Mapping

from rewire.core.topology import Edit
from rewire.stores.optimizer.optimizers import Optimizers
from rewire.stores.packed_layer import PackedLayer
from rewire.stores.rearrange import Rearrangement
from rewire.stores.sparse_weight import set_values


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
    set_values(layer.parameter, move(layer.parameter.detach(), edit.value))
    for (_, state, _), value in zip(optimizers.entries(layer.parameter), newborn, strict=True):
        state[move.grown_slots] = value
    layer.module.weight_positions = move(before, edit.grow).to(layer.module.weight_positions.dtype)
    if grad is not None:
        layer.parameter.grad = move(grad)
