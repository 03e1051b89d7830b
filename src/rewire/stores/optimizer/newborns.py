"""Second moments of newborn weights: zero after the rewiring, a safe value at the next step.

Optimizers like Adam divide by the root of a second moment and correct it for its start at zero by a step count that all
weights of a layer share. A newborn weight whose second moment is zero while the count is not would move by
``(1 - beta1) / sqrt(1 - beta2)`` learning rates, 3.2 with the usual settings. So before its first step it gets

    v = max(mean v of the layer's surviving weights, c * mean grad ** 2 of its newborn weights, c * grad ** 2)

with ``c = 1 - beta2 ** t`` after ``t`` steps of the optimizer, by which it divides ``v`` again: the update is that of a
weight with the second moment of the others, or of larger gradients. A step without newborn weights costs nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rewire.core.across_layers import exact_means
from rewire.core.dense_ops import where_true
from rewire.core.layer import Signal
from rewire.core.ranks import Ranks, total
from rewire.stores.optimizer.optimizers import Optimizers, found_inf, trained_by
from rewire.stores.optimizer.rules import SECOND_MOMENT

ENOUGH = 16  # surviving weights that must all be non-negative before an unknown entry counts as a second moment


class LayerWithState(Protocol):
    """A layer of a store, as far as the state of its weights is concerned."""

    parameter: nn.Parameter

    @property
    def name(self) -> str: ...
    def read(self, signal: Signal) -> Tensor: ...
    def read_state(self, state: Tensor) -> Tensor: ...
    def write_state(self, state: Tensor, rows: Tensor, values: Tensor | float) -> None: ...


class Newborns:
    """The layers with weights that were born at a rewiring and have not been trained yet."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()

    def add(self, layers: Sequence[LayerWithState], grown: Sequence[int]) -> None:
        """A rewiring has grown so many weights in each layer."""
        self.waiting |= {layer.name for layer, count in zip(layers, grown, strict=True) if count}

    def start(
        self, optimizers: Optimizers, optimizer: torch.optim.Optimizer, layers: Iterable[LayerWithState], ranks: Ranks
    ) -> None:
        """Before a step of ``optimizer``, with its gradients complete: start the second moments of its newborn weights.

        A layer without a gradient has to wait, and all have to if a ``GradScaler`` skips the step. If the layers are
        sharded, all ranks must call it.
        """
        if not self.waiting:
            return
        ours, groups = trained_by(optimizer), optimizers.groups()
        here = [layer for layer in layers if layer.name in self.waiting and id(layer.parameter) in ours]
        here = [layer for layer in here if layer.parameter.grad is not None]
        moments = [moment for layer in here for moment in _second_moments(optimizers, optimizer, layer)]
        skips = total(ranks, [int(found_inf(optimizer))] if moments else [])
        if not any(skips):
            self.waiting -= {layer.name for layer in here}
            _start(moments, groups, ranks)


@dataclass(frozen=True)
class _SecondMoment:
    """An entry of a layer's optimizer state, its values at the active positions, and which of those are newborn."""

    layer: LayerWithState
    state: Tensor
    values: Tensor
    newborn: Tensor  # rows in the active positions
    squares: Tensor  # of the newborn weights' gradients
    known: bool  # to be an average of squared gradients
    step: Any  # how many steps the optimizer has made

    @property
    def survivors(self) -> int:
        return len(self.values) - len(self.newborn)

    @property
    def has_negative(self) -> int:
        return int(not self.known and bool((self.values < 0).any()))


def _second_moments(
    optimizers: Optimizers, optimizer: torch.optim.Optimizer, layer: LayerWithState
) -> list[_SecondMoment]:
    """The state of a layer that is, or may be, a second moment."""
    entries = [(value, layer.read_state(value), rule) for _, value, rule in optimizers.entries(layer.parameter)]
    rules = [rule for *_, rule in entries]
    if SECOND_MOMENT not in rules and None not in rules:
        return []
    # A weight whose moments are all zero was never trained: what a rewiring leaves at the positions that it grows.
    moments = (0.0, SECOND_MOMENT) if SECOND_MOMENT in rules else (0.0, None)
    zero = [values == 0 for _, values, rule in entries if rule in moments]
    newborn = where_true(torch.stack(zero).all(0))
    grad = layer.read(Signal.GRAD)[newborn]
    grad = grad.to(torch.promote_types(grad.dtype, torch.float32))
    scale = getattr(optimizer, "grad_scale", None)  # of a GradScaler, for fused optimizers
    squares = (grad if scale is None else grad / scale).square()
    step = optimizer.state[layer.parameter].get("step")
    return [
        _SecondMoment(layer, state, values, newborn, squares, rule is not None, step)
        for state, values, rule in entries
        if rule in (SECOND_MOMENT, None)
    ]


def _start(moments: Sequence[_SecondMoment], groups: Mapping[int, Mapping[str, Any]], ranks: Ranks) -> None:
    """Write the second moments of the newborn weights. The means are those of all ranks, exact to the last bit."""
    counts = total(
        ranks, [n for moment in moments for n in (moment.survivors, len(moment.newborn), moment.has_negative)]
    )
    survivors, newborn, negative = counts[::3], counts[1::3], counts[2::3]
    means = exact_means(
        # Newborn weights have zeros there, so the sum over all weights is the sum over the surviving ones.
        [
            *(_finite(moment.values).clamp(min=0) for moment in moments),
            *(_finite(moment.squares) for moment in moments),
        ],
        survivors + newborn,
        ranks,
    )
    of_survivors, of_newborn = means[: len(moments)], means[len(moments) :]
    for i, moment in enumerate(moments):
        if moment.known:
            correction = _bias_correction(groups[id(moment.layer.parameter)], moment.step)
            start = (moment.squares.clamp(min=of_newborn[i]) * correction).clamp(min=of_survivors[i])
            moment.layer.write_state(moment.state, moment.newborn, start)
        elif not negative[i] and survivors[i] >= ENOUGH:
            moment.layer.write_state(moment.state, moment.newborn, of_survivors[i])


def _finite(values: Tensor) -> Tensor:
    return values[values.isfinite()]


def _bias_correction(group: Mapping[str, Any], step: Any) -> Any:
    """By what the optimizer divides its second moments after these steps; 1 if it does not, or if it is not known."""
    betas, step = group.get("betas"), group.get("step") if step is None else step
    return 1.0 if betas is None or len(betas) < 2 or step is None else 1.0 - betas[1] ** step
