"""Optimizers that read a weight as a matrix, or keep state for rows and columns: the packed store has none to give."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from torch import Tensor, nn

from rewire.stores.optimizer.optimizers import Optimizers, trained_by
from rewire.stores.optimizer.state import has_only_elementwise_state

# Parts of class names, in small letters: optimizers of other libraries need not be imported, and subclasses count.
_MATRICES = ("lbfgs", "muon", "shampoo", "soap", "kfac", "galore")
_FACTORED = ("adafactor",)
_BY_DIMENSIONS = ("lars",)  # leave out parameters of one dimension: biases and norms, and all packed weights


def refuse_matrix_optimizers(optimizers: Optimizers, weights: Mapping[str, Tensor]) -> None:
    """Raise if an optimizer of one of these weights would compute something else for a vector of non-zeros."""
    for optimizer in optimizers.all:
        ours = trained_by(optimizer)
        names = [name for name, weight in weights.items() if id(weight) in ours]
        kinds = [kind.__name__.lower() for kind in type(optimizer).__mro__]
        label = type(optimizer).__name__
        if not names:
            continue
        if any(word in kind for word in _MATRICES for kind in kinds):
            raise ValueError(
                f"{label} needs whole weights, and the packed store holds only the non-zeros: "
                f"use store='masked', or another optimizer for {', '.join(names)}"
            )
        if any(word in kind for word in _FACTORED for kind in kinds):
            raise ValueError(
                f"{label} keeps one second moment for each row and column of a weight. The packed store holds a weight "
                "as a vector of its non-zeros, for which it would keep one for each: another algorithm. "
                f"Use store='masked', or another optimizer for {', '.join(names)}"
            )
        if any(word in kind for word in _BY_DIMENSIONS for kind in kinds):
            raise ValueError(
                f"{label} usually treats parameters of one dimension as biases, and packed weights are vectors of "
                f"their non-zeros: use store='masked', or another optimizer for {', '.join(names)}"
            )


def warn_of_groups_by_dimension(optimizers: Optimizers, weights: Mapping[str, Tensor]) -> None:
    """Warn if no packed weight decays and something else does: groups that were made by ``p.ndim`` look like that."""
    groups = [group for optimizer in optimizers.all for group in optimizer.param_groups]
    decaying = {id(p) for group in groups if group.get("weight_decay") for p in group["params"]}
    if weights and decaying and not any(id(weight) in decaying for weight in weights.values()):
        warnings.warn(
            "no packed weight is in a group with weight_decay, but other parameters are. Packed weights are vectors: "
            "if groups were made by p.ndim, make them by name, or before sparsify",
            stacklevel=4,
        )


def refuse_shared_state(optimizers: Optimizers, parameters: Sequence[Tensor]) -> None:
    """Raise if an optimizer of these packed parameters keeps state that has no entry for each weight."""
    for optimizer in optimizers.all if parameters else ():
        if not has_only_elementwise_state(optimizer) and trained_by(optimizer) & set(map(id, parameters)):
            raise ValueError(
                f"{type(optimizer).__name__} keeps state that has no entry for each weight, so the packed store "
                "cannot move it with the weights: use store='masked'"
            )


class NamedWeight(Protocol):
    """A packed layer, as far as it is asked here."""

    name: str
    parameter: nn.Parameter


def refuse_other_state(optimizers: Optimizers, layers: Iterable[NamedWeight]) -> None:
    """Raise if state was loaded that has another number of values than its packed weight."""
    for layer in layers:
        for optimizer in optimizers.all:
            for key, value in optimizer.state.get(layer.parameter, {}).items():
                if isinstance(value, Tensor) and value.numel() != 1 and value.shape != layer.parameter.shape:
                    raise ValueError(
                        f"{key} was loaded into {type(optimizer).__name__} with {value.numel()} values for "
                        f"{layer.name}, which has {layer.parameter.numel()} weights: load the model's state_dict of "
                        "the same checkpoint too"
                    )
