"""Optimizer state moves with the weights: every state tensor of the parameter's shape, for any optimizer."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from rewire.core.dense_ops import put
from rewire.distributed.dtensor import local


def unwrap_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer inside the wrappers that trainers put around it, which have no step hooks of their own."""
    while isinstance(wrapped := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = wrapped
    return optimizer


def refuse_untrained(optimizer: torch.optim.Optimizer, weights: Mapping[str, Tensor]) -> None:
    """Raise, with their names, if there are weights that the optimizer does not train."""
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, weight in weights.items() if id(weight) not in trained]
    if missing:
        raise ValueError(
            f"the optimizer does not hold the weight of {', '.join(missing)}: "
            "build it from model.parameters(), or leave those layers out with exclude="
        )


def state_tensors(optimizer: torch.optim.Optimizer, parameter: Tensor) -> Iterator[Tensor]:
    """The state tensors of a parameter that have an entry for every weight: momentum, second moments, ..."""
    for value in optimizer.state.get(parameter, {}).values():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            yield value


def reset_state(optimizer: torch.optim.Optimizer, parameter: Tensor, positions: Tensor) -> None:
    """Zero the state at these positions of the local tensor, as if the weights had never been trained."""
    for state in state_tensors(optimizer, parameter):
        put(local(state), positions, 0.0)


def map_state(optimizer: torch.optim.Optimizer, parameter: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """Replace each state tensor that has an entry for every weight by ``change(tensor)``."""
    state = optimizer.state.get(parameter, {})
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            state[key] = change(value)


def has_only_elementwise_state(optimizer: torch.optim.Optimizer) -> bool:
    """Whether all state is either a scalar or of its parameter's shape, so that zeros in it stay zeros."""
    return all(
        not isinstance(value, Tensor) or value.numel() == 1 or value.shape == parameter.shape
        for parameter, state in optimizer.state.items()
        for value in (state.values() if isinstance(state, dict) else ())
    ) and not any(isinstance(value, (list, tuple)) for state in optimizer.state.values() for value in state.values())
