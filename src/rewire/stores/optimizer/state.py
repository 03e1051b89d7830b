"""Optimizer state moves with the weights: which entries belong to single weights, and moving them."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from rewire.stores.optimizer.rules import SHARED, rule_of


def weight_entries(
    optimizer: torch.optim.Optimizer, parameter: Tensor, shape: torch.Size | None = None
) -> Iterator[tuple[str, Tensor]]:
    """The entries of a parameter's state that have a value for every weight: momentum, second moments, ...

    An entry that is known to be shared by rows or columns is none of them even if its shape fits. ``shape``: that of
    the parameter when the optimizer last stepped, if it has another one now.
    """
    shape = parameter.shape if shape is None else shape
    for key, value in optimizer.state.get(parameter, {}).items():
        if isinstance(value, Tensor) and value.shape == shape and rule_of(optimizer, key) != SHARED:
            if not value.is_floating_point():
                raise ValueError(
                    f"{type(optimizer).__name__} keeps {key} as {value.dtype}, in a code of its own: what stands for "
                    "zero there is not known, so the state cannot move with the weights. Use an optimizer that keeps "
                    "its state in floating point"
                )
            yield key, value


def state_tensors(optimizer: torch.optim.Optimizer, parameter: Tensor) -> Iterator[Tensor]:
    """The state tensors of a parameter that have an entry for every weight."""
    return (value for _, value in weight_entries(optimizer, parameter))


def map_state(optimizer: torch.optim.Optimizer, parameter: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """Replace each state tensor that has an entry for every weight by ``change(tensor)``."""
    for key, value in list(weight_entries(optimizer, parameter)):
        optimizer.state[parameter][key] = change(value)


def packed_entries(optimizer: torch.optim.Optimizer, parameter: Tensor, nnz: int) -> list[str]:
    """The entries of a dense parameter's state that come from a packed checkpoint, with one value for each non-zero."""
    keys = []
    for key, value in optimizer.state.get(parameter, {}).items():
        if not isinstance(value, Tensor) or value.shape != (nnz,) or parameter.dim() == 1:
            continue
        rule = rule_of(optimizer, key)
        if rule is None and nnz in parameter.shape:
            raise ValueError(
                f"{type(optimizer).__name__} keeps {key} of length {nnz} for a weight of shape "
                f"{tuple(parameter.shape)} with {nnz} non-zeros: it may belong to the non-zeros or to a row or column. "
                f"Say which: rewire.stores.optimizer.register({type(optimizer).__name__}, {key}=0.0) or {key}='shared'"
            )
        if rule != SHARED:
            keys.append(key)
    return keys


def has_only_elementwise_state(optimizer: torch.optim.Optimizer) -> bool:
    """Whether all state is either a scalar or of its parameter's shape, so that zeros in it stay zeros."""
    return all(
        not isinstance(value, Tensor) or value.numel() == 1 or value.shape == parameter.shape
        for parameter, state in optimizer.state.items()
        for value in (state.values() if isinstance(state, dict) else ())
    ) and not any(isinstance(value, (list, tuple)) for state in optimizer.state.values() for value in state.values())
