"""Second moments of newborn weights: zero after the rewiring, a safe value at the next step.

Optimizers like Adam divide by the root of a second moment and correct it for its start at zero by a step count that all
weights of a layer share. A newborn weight whose second moment is zero while the count is not would move by
``(1 - beta1) / sqrt(1 - beta2)`` learning rates, 3.2 with the usual settings. So before its first step it gets

    v = max(mean second moment of the layer's surviving weights, (1 - beta2 ** t) * grad ** 2)

after ``t`` steps of the optimizer: corrected, that is at least the mean of the others and at least ``grad ** 2``. The
means are taken at the rewiring, where ranks communicate anyway; the step that follows needs nothing from other ranks.
"""

from collections.abc import Iterator, Mapping, Sequence
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
    @property
    def nnz(self) -> int: ...
    def read(self, signal: Signal) -> Tensor: ...
    def read_state(self, state: Tensor) -> Tensor:
        """The values of a state tensor at the active positions of this process."""

    def write_state(self, state: Tensor, rows: Tensor, values: Tensor | float) -> None:
        """Write values for some of the active weights, given by their rows in ``active()``."""


class Newborns:
    """The layers with weights that have not been trained yet, and what their second moments will start from."""

    def __init__(self) -> None:
        self.means: dict[str, dict[str, float]] = {}  # by layer and state key: the mean of the surviving weights

    def add(self, optimizers: Optimizers, layers: Sequence[LayerWithState], grown: Sequence[int], ranks: Ranks) -> None:
        """After a rewiring: take the means. ``grown``: newborn weights of each layer, over all ranks. A collective."""
        entries = [
            (layer, key, layer.read_state(value), layer.nnz - count, rule)
            for layer, count in zip(layers, grown, strict=True)
            if count
            for key, value, rule in optimizers.entries(layer.parameter)
            if rule in (SECOND_MOMENT, None)
        ]
        unknown = [int((values < 0).any()) for *_, values, _, rule in entries if rule is None]
        negative = iter(total(ranks, unknown))
        chosen = [
            (layer, key, values[values.isfinite()], survivors)
            for layer, key, values, survivors, rule in entries
            if rule is not None or (not next(negative) and survivors >= ENOUGH)
        ]
        # Newborn weights have zeros there, so the sum over all weights is the sum over the surviving ones.
        found = exact_means([values for *_, values, _ in chosen], [count for *_, count in chosen], ranks)
        for layer, *_ in entries:
            self.means.pop(layer.name, None)
        for (layer, key, *_), mean in zip(chosen, found, strict=True):
            self.means.setdefault(layer.name, {})[key] = mean

    def start(self, optimizers: Optimizers, optimizer: torch.optim.Optimizer, layers: Sequence[LayerWithState]) -> None:
        """Before a step of ``optimizer``, with its gradients complete: start the second moments of its newborn weights.

        A layer without a gradient, and a step that will be skipped, have to wait.
        """
        if not self.means or found_inf(optimizer):
            return
        ours, groups = trained_by(optimizer), optimizers.groups()
        for layer in layers:
            waits = layer.parameter.grad is None or id(layer.parameter) not in ours
            if layer.name in self.means and not waits:
                means = self.means.pop(layer.name)
                _start(layer, list(_moments(optimizers, layer, means)), optimizer, groups[id(layer.parameter)])


def _moments(
    optimizers: Optimizers, layer: LayerWithState, means: Mapping[str, float]
) -> Iterator[tuple[Tensor, float | None, bool]]:
    """The moments of a layer's weights, with the mean of the second ones, and whether they are of squared gradients."""
    for key, value, rule in optimizers.entries(layer.parameter):
        if key in means or rule in (0.0, SECOND_MOMENT):
            yield value, means.get(key), rule == SECOND_MOMENT


def _start(
    layer: LayerWithState,
    moments: Sequence[tuple[Tensor, float | None, bool]],
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
) -> None:
    """Write the second moments of the weights that have none of the moments yet: they were never trained."""
    untrained = torch.stack([layer.read_state(value) == 0 for value, *_ in moments]).all(0)
    rows = where_true(untrained)
    grad = layer.read(Signal.GRAD)[rows]
    grad = grad.to(torch.promote_types(grad.dtype, torch.float32))
    scale = getattr(optimizer, "grad_scale", None)  # of a GradScaler, for fused optimizers
    squares = (grad if scale is None else grad / scale).square()
    squares *= _bias_correction(group, optimizer.state[layer.parameter])
    for value, mean, of_squares in moments:
        if mean is not None:
            start = squares.clamp(min=mean) if of_squares else torch.full_like(squares, mean)
            layer.write_state(value, rows, start)


def _bias_correction(group: Mapping[str, Any], state: Mapping[str, Any]) -> float | Tensor:
    """By what the optimizer will divide: ``1 - beta2 ** t`` after ``t`` steps; 1 if it has no such correction."""
    betas, step = group.get("betas"), state.get("step", group.get("step"))
    if betas is None or len(betas) < 2 or step is None:
        return 1.0
    return 1.0 - betas[1] ** step  # type: ignore[no-any-return]
