"""What ``sparsify`` refuses before it changes anything, each with a sentence that says what to do."""

from collections.abc import Sequence

import torch
from torch import nn

from rewire.core.dense_ops import is_expanded
from rewire.core.layer import LayerSpec
from rewire.core.method import Method, density_bounds
from rewire.distributed.dtensor import local
from rewire.model.select import SelectedWeight
from rewire.model.state_names import is_packed, is_sparse
from rewire.parts.constrained_start import refuse_budget
from rewire.stores.masked import MaskedStore
from rewire.stores.optimizer.optimizers import Optimizers
from rewire.stores.packed import PackedStore


def refuse_wrong_types(model: object, optimizer: object, method: object, init: object) -> None:
    """Raise a TypeError that names the argument of ``sparsify`` and what was given."""
    optimizers = optimizer if isinstance(optimizer, (list, tuple)) and optimizer else [optimizer]
    expected = (
        (model, nn.Module, "model"),
        *((entry, torch.optim.Optimizer, "optimizer") for entry in optimizers),
        (method, Method, "method"),
    )
    for value, kind, name in expected:
        if not isinstance(value, kind):
            hint = " (call the method: rewire.ggr(density=...))" if name == "method" else ""
            raise TypeError(f"{name} must be a {kind.__module__}.{kind.__qualname__}, not {value!r}{hint}")
    if init not in (None, "fan_in"):
        raise ValueError(f"init must be None or 'fan_in', not {init!r}")


def refuse_missing_signals(kind: type[MaskedStore] | type[PackedStore], method: Method) -> None:
    """Raise if the method reads a signal that this kind of store does not have."""
    missing = method.signals - kind.supplies
    if missing:
        raise ValueError(
            f"the method reads {', '.join(s.value for s in missing)}, which the {kind.name} store cannot supply"
        )


def refuse_unfit_weights(method: Method, weights: Sequence[SelectedWeight], optimizers: Optimizers) -> None:
    """Raise if the weights are in a state, or have an optimizer or a shape, that this method cannot begin with."""
    _refuse_wrong_state(weights, optimizers)
    _refuse_layers(method, [weight.spec for weight in weights])
    if method.constraint is not None:
        refuse_budget(method.constraint, [weight.spec for weight in weights], *sorted(density_bounds(method.density)))


def _refuse_wrong_state(weights: Sequence[SelectedWeight], optimizers: Optimizers) -> None:
    for weight in weights:
        if not is_sparse(weight.module):
            continue
        how = "is packed" if is_packed(weight.module) else "has a mask"
        raise ValueError(
            f"the model is sparse already ({weight.spec.name} {how}): call remove() on its Rewirer first; "
            "for a copy, build the model anew, sparsify it and load the state_dict"
        )
    expanded = [weight.spec.name for weight in weights if is_expanded(local(weight.parameter))]
    if expanded:
        raise ValueError(
            f"several weights of {', '.join(expanded)} share their memory (an expanded tensor): clone it first"
        )
    if any(type(optimizer).__name__ == "ZeroRedundancyOptimizer" for optimizer in optimizers.all):
        raise ValueError("ZeroRedundancyOptimizer keeps its state where it cannot follow the weights: use fully_shard")
    optimizers.refuse_untrained({weight.spec.name: weight.parameter for weight in weights})


def _refuse_layers(method: Method, specs: Sequence[LayerSpec]) -> None:
    """Let every part that admits only some kinds of layers look at them."""
    for part in (method.drop, method.allocate, method.grow):
        refuse = getattr(part, "refuse", None)
        if refuse is not None:
            refuse(specs)
