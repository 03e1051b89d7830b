"""``Rewirer.check``: everything that must hold between steps, verified on demand and reported layer by layer."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from rewire._torch import parameters_of
from rewire.core.ranks import total
from rewire.core.structure import Constraint, structure_fault
from rewire.distributed.dtensor import is_sharded, local
from rewire.distributed.handshake import Peers
from rewire.rewirer.state import checksums
from rewire.stores.optimizer.optimizers import trained_by
from rewire.stores.protocol import Store, StoredLayer

# State of torch's own optimizers that is zero where gradient and weight are, whatever the settings. Not among them:
# what Rprop, Adamax and Adagrad may start with, and all that is unknown.
ZERO_STATE = {
    "momentum_buffer": ("SGD", "RMSprop"),
    "exp_avg": ("Adam", "AdamW", "NAdam", "RAdam", "Adamax"),
    "exp_avg_sq": ("Adam", "AdamW", "NAdam", "RAdam"),
    "max_exp_avg_sq": ("Adam", "AdamW", "RAdam"),
    "square_avg": ("RMSprop", "Adadelta"),
    "grad_avg": ("RMSprop",),
    "acc_delta": ("Adadelta",),
}


@torch.no_grad()
def check(
    store: Store, peers: Peers, model: nn.Module, budget: int | None, constraint: Constraint | None = None
) -> None:
    """Raise one error that lists everything that is not as it must be; ``budget``: the number of weights, if known."""
    present = set(model.modules())
    faults = [f"{layer.name}: its module is not in the model" for layer in store.layers if layer.module not in present]
    faults += [f"{layer.name}: {fault}" for layer in store.layers for fault in _faults(layer, store)]
    if constraint is not None:
        structure_faults = [
            (layer.name, structure_fault(constraint, layer, store.ranks.join([layer.active()])[0]))
            for layer in store.layers
        ]
        faults += [f"{name}: {fault}" for name, fault in structure_faults if fault]
    faults += _differing_ranks(store.layers, store, peers)
    nnz = sum(layer.nnz for layer in store.layers)
    if budget is not None and nnz != budget:
        faults.append(f"the layers have {nnz} weights together, the budget is {budget}")
    if faults:
        raise RuntimeError("rewirer.check() found:\n" + "\n".join(f"  {fault}" for fault in faults))


def _faults(layer: StoredLayer, store: Store) -> Iterator[str]:
    module_weight = parameters_of(layer.module).get(layer.link.weight.name)
    if module_weight is not layer.parameter and not is_sharded(layer.parameter):
        yield "the module has another parameter than the one that is rewired"
        return
    if not any(id(layer.parameter) in trained_by(optimizer) for optimizer in store.optimizers.all):
        yield "no optimizer holds its parameter"
    wrong = list(_topology_faults(layer, store))
    yield from wrong
    if not wrong:  # everything else is compared with the topology
        yield from _value_faults(layer, store)
        yield from _average_faults(layer)


def _topology_faults(layer: StoredLayer, store: Store) -> Iterator[str]:
    active = layer.active()
    if len(active) and not bool((active.diff() > 0).all()):
        yield "its positions are not sorted, or one of them is there twice"
    if len(active) and not (layer.span.start <= int(active.min()) <= int(active.max()) < layer.span.stop):
        yield f"its positions go from {int(active.min())} to {int(active.max())}, outside of {layer.span}"
    weight = layer.link.weight
    if weight.mask is None and len(active) != layer.parameter.numel():
        yield f"it has {layer.parameter.numel()} values and {len(active)} positions"
    if weight.mask is not None and (weight.mask.shape, weight.mask.dtype) != (local(layer.parameter).shape, torch.bool):
        yield f"its mask is {weight.mask.dtype} of shape {tuple(weight.mask.shape)}"
    (counted,) = total(store.ranks, [len(active)])
    if counted != layer.nnz:
        yield f"it has {counted} weights and counts {layer.nnz}"


def _value_faults(layer: StoredLayer, store: Store) -> Iterator[str]:
    parameter = layer.parameter
    yield from _nonzeros("weights", parameter, layer)
    if parameter.grad is not None:
        if parameter.grad.shape != parameter.shape:
            yield f"its gradient has shape {tuple(parameter.grad.shape)}, its weight {tuple(parameter.shape)}"
        elif not store.keep_inactive_grads:  # a rewiring will rank them
            yield from _nonzeros("gradients", parameter.grad, layer)
    for optimizer in () if layer.state_is_old else store.optimizers.all:
        yield from _state_faults(layer, optimizer)


def _state_faults(layer: StoredLayer, optimizer: torch.optim.Optimizer) -> Iterator[str]:
    parameter = layer.parameter
    for key, state in optimizer.state.get(parameter, {}).items():
        if not isinstance(state, Tensor) or state.numel() <= 1:
            continue
        if layer.link.weight.mask is None and state.shape != parameter.shape:
            yield f"its optimizer state {key} has shape {tuple(state.shape)}, its weight {tuple(parameter.shape)}"
        elif type(optimizer).__name__ in ZERO_STATE.get(key, ()):
            yield from _nonzeros(f"entries of the optimizer state {key}", state, layer)


def _nonzeros(what: str, tensor: Tensor, layer: StoredLayer) -> Iterator[str]:
    """How many elements of a tensor are not zero where no weight exists; a packed tensor has none there."""
    mask = layer.link.weight.mask
    if mask is not None and local(tensor).shape == mask.shape:
        count = int((local(tensor).ne(0) & ~mask).sum())
        if count:
            yield f"{count} {what} are not zero where no weight exists"


def _average_faults(layer: StoredLayer) -> Iterator[str]:
    for average in layer.link.averages():
        if not average.weight.has_topology_of(layer.link.weight):
            yield "its average has another topology"
    if not all(average.fits(layer.link.weight) for average in layer.link.tensor_averages):
        yield "its average has another shape or topology"
    if layer.average is not None and layer.average.shape != layer.parameter.shape:
        yield f"its average gradient has shape {tuple(layer.average.shape)}"


def _differing_ranks(layers: Sequence[StoredLayer], store: Store, peers: Peers) -> list[str]:
    """Layers whose topology is not the same on all ranks that have a copy of them."""
    sums = checksums(layers, store.ranks) if peers.copies else []
    differing = []
    for group in peers.copies:
        columns = zip(*group.gather(sums), strict=True)
        differing += [layer.name for layer, column in zip(layers, columns, strict=True) if len(set(column)) > 1]
    return [f"{name}: the ranks have different topologies" for name in dict.fromkeys(differing)]
