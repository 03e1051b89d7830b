"""The optimizers that train a sparse model: usually one, sometimes several, each for its own parameters."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rewire.stores.optimizer.rules import Rule, rule_of, start_value
from rewire.stores.optimizer.state import has_only_elementwise_state, map_state, weight_entries

Given = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]

_INSIDE = ("optimizer", "base_optimizer", "base")  # where wrappers keep the optimizer that they wrap


class Optimizers:
    """The optimizers of one model, without the wrappers that trainers put around them."""

    def __init__(self, given: Given) -> None:
        outer = [given] if isinstance(given, torch.optim.Optimizer) else list(given)
        chains = [list(_chain(optimizer)) for optimizer in outer]
        self.all = [chain[-1] for chain in chains]  # those whose steps are watched
        # A wrapper may keep state of its own: slow weights, perturbations. Where both share it, the inner one counts.
        states = {id(holder.state): holder for chain in chains for holder in chain if hasattr(holder, "state")}
        self._holders = list(states.values())

    def groups(self) -> dict[int, dict[str, Any]]:
        """The group of options of each parameter, by the parameter's identity."""
        return {id(p): group for optimizer in self.all for group in optimizer.param_groups for p in group["params"]}

    def entries(self, parameter: Tensor) -> Iterator[tuple[str, Tensor, Rule | None]]:
        """Key, tensor and rule of all state that has a value for every weight of the parameter."""
        for holder in self._holders:
            for key, value in weight_entries(holder, parameter):
                yield key, value, rule_of(holder, key)

    def have_trained(self, parameter: Tensor) -> bool:
        """Whether an optimizer has stepped with the parameter; some have state, and a count of zero, before that."""
        states = (holder.state.get(parameter) for holder in self._holders)
        return any(state and float(state.get("step", 1)) > 0 for state in states)

    def start_values(self, parameter: Tensor, group: Mapping[str, object]) -> Iterator[tuple[Tensor, float | Tensor]]:
        """All such tensors, each with what a newborn weight has of it right after a rewiring."""
        return ((value, start_value(rule, group)) for _, value, rule in self.entries(parameter))

    def change_state(self, parameter: Tensor, change: Callable[[Tensor], Tensor]) -> None:
        """Replace each tensor of that state by ``change(tensor)``."""
        for holder in self._holders:
            map_state(holder, parameter, change)

    def change_state_of_shape(
        self, parameter: Tensor, shape: torch.Size, change: Callable[[Tensor, Rule | None], Tensor]
    ) -> None:
        """Replace each tensor by ``change(tensor, rule)`` that has a value for every weight of an earlier shape."""
        for holder in self._holders:
            for key, value in list(weight_entries(holder, parameter, shape)):
                holder.state[parameter][key] = change(value, rule_of(holder, key))

    @property
    def grad_scale(self) -> Tensor | None:
        """By what a ``GradScaler`` multiplied the gradients that fused optimizers are about to divide by it."""
        scales = (getattr(optimizer, "grad_scale", None) for optimizer in self.all)
        return next((scale for scale in scales if scale is not None), None)

    @property
    def have_only_elementwise_state(self) -> bool:
        """Whether all state is either a scalar or of its parameter's shape."""
        return all(map(has_only_elementwise_state, self._holders))

    def refuse_untrained(self, weights: Mapping[str, Tensor]) -> None:
        """Raise, with their names, if there are weights that no optimizer trains, or more than one."""
        id_sets = [trained_by(optimizer) for optimizer in self.all]
        trainers = {name: sum(id(weight) in ids for ids in id_sets) for name, weight in weights.items()}
        missing = [name for name, count in trainers.items() if not count]
        if missing:
            who = "the optimizer does not hold" if len(self.all) == 1 else "none of the optimizers holds"
            raise ValueError(
                f"{who} the weight of {', '.join(missing)}: build it from model.parameters(); if several "
                "optimizers train the sparse layers, give all of them as a list; or leave layers out with exclude="
            )
        twice = [name for name, count in trainers.items() if count > 1]
        if twice:
            raise ValueError(
                f"several optimizers hold the weight of {', '.join(twice)}: give each sparse weight to one of them"
            )


def trained_by(optimizer: torch.optim.Optimizer) -> set[int]:
    """The identities of the parameters that an optimizer trains."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _chain(optimizer: torch.optim.Optimizer) -> Iterator[torch.optim.Optimizer]:
    """An optimizer, the one that it wraps, the one that that wraps, ..."""
    wrapped: torch.optim.Optimizer | None = optimizer
    while wrapped is not None:
        yield wrapped
        inside = [getattr(wrapped, name, None) for name in _INSIDE]
        wrapped = next((candidate for candidate in inside if isinstance(candidate, torch.optim.Optimizer)), None)


def unwrap_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer inside the wrappers that trainers put around it, which have no step hooks of their own."""
    return list(_chain(optimizer))[-1]


def found_inf(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a ``GradScaler`` tells a fused optimizer to skip the coming step. Waits for the device."""
    skipped = getattr(optimizer, "found_inf", None)
    return skipped is not None and bool(skipped)
