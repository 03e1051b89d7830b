"""What other code does to gradients between backward and the optimizer's step, as the packed store has to know it.

It computes gradients at inactive positions from what the backward pass recorded. Unscaling, clipping by norm and hooks
that multiply apply to them too: the factor is found in the gradient of the weights that exist.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from rewire.core.dense_ops import is_finite

ASSIGNED = "a gradient was assigned to it that backward() did not accumulate, as with torch.autograd.grad"
CHANGED = "it was changed after backward(), and not by multiplying the whole layer by one number"
HOOKED = "a hook on the weight changed it, and not by multiplying the whole layer by one number"
OVERWRITTEN = "an activation that the layer has read, or the gradient of its output, was overwritten after backward()"


def refusal(name: str, change: str) -> str:
    """The message of the error for a gradient of which nothing is known at inactive positions."""
    return (
        f"the gradient of {name} cannot be ranked: {change}. The packed store computes the gradient of weights that do "
        "not exist from the backward pass alone. Let backward() produce .grad and change it by factors only, or use "
        f'sparsify(..., store="masked"), or keep_masked=[{name!r}, ...] for some layers'
    )


def factor_between(before: Tensor, after: Tensor, added_to: Tensor | None = None) -> float | None:
    """By how much ``before`` was multiplied to give ``after``, up to rounding; ``None`` if it is no multiple.

    ``added_to``: that tensor was then added. Exactly 1 for a tensor that is the same. Also 1 for those that are not
    finite: their rewiring is put off.
    """
    change = after if added_to is None else after - added_to
    if torch.equal(before, change):
        return 1.0
    if not is_finite(change):
        return 1.0
    eps, tiny = torch.finfo(after.dtype).eps, torch.finfo(after.dtype).tiny
    rounding = torch.zeros_like(after) if added_to is None else 4 * eps * (after.abs() + added_to.abs())
    # The entry that tells the factor best: the largest, compared with what rounding has changed.
    best = (before.abs() if added_to is None else before.abs() / (rounding + tiny)).argmax()
    ratio = float(change[best] / before[best]) if bool(before.any()) else 1.0
    if not math.isfinite(ratio):
        return 1.0
    for factor in (1.0, ratio) if added_to is not None else (ratio,):
        expected = before * factor
        if bool(((change - expected).abs() <= 32 * eps * expected.abs() + 4 * tiny + rounding).all()):
            return factor
    return None


class Scaled(Protocol):
    """The gradient of a layer that may have been multiplied."""

    scale: float

    @property
    def is_silent(self) -> bool:
        """Whether zeros were accumulated, which do not tell by how much they were multiplied since."""

    @property
    def tells_scale(self) -> bool:
        """Whether the gradient tells by how much it was multiplied."""


def share_scale(gradients: Sequence[Scaled]) -> None:
    """Give silent layers the factor of the others: a GradScaler or clipping by norm multiplies all alike."""
    silent = [gradient for gradient in gradients if gradient.is_silent]
    factors = sorted(gradient.scale for gradient in gradients if gradient.tells_scale) if silent else []
    if not factors:
        return
    if not math.isclose(factors[0], factors[-1], rel_tol=1e-4):
        warnings.warn(
            f"the gradients of layers were multiplied by different numbers, {factors[0]:.3g} to {factors[-1]:.3g}. The "
            f"median is used for {len(silent)} of them, where the gradients of all weights are zero and tell none",
            stacklevel=2,
        )
    for gradient in silent:
        gradient.scale = factors[len(factors) // 2]
