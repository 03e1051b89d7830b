"""Scores that weights can be ranked by, besides the plain signals. For a score of your own see ``Score``."""

import math
from dataclasses import dataclass

from torch import Tensor

from rewire.core.score import Score as Score
from rewire.core.score import Signal, check_score


@dataclass(frozen=True)
class Saliency:
    """``weight * gradient``: by how much the loss would change, to first order, if the weight were dropped.

    It is zero at inactive positions, so it can rank weights to drop but not weights to grow.
    """

    reads = (Signal.WEIGHT, Signal.GRAD)

    def __call__(self, *values: Tensor) -> Tensor:
        """``weight * gradient``, whose absolute value is ranked."""
        weight, grad = values
        return weight * grad


@dataclass(frozen=True)
class WeightPlusGradient:
    """``|weight| + balance * |gradient|`` (MEST)."""

    balance: float = 0.01
    reads = (Signal.WEIGHT, Signal.GRAD)

    def __post_init__(self) -> None:
        if not isinstance(self.balance, (int, float)) or not 0 <= self.balance < math.inf:
            raise ValueError(
                f"balance is the factor of the gradient and must be at least 0 and finite, not {self.balance!r}"
            )

    def __call__(self, *values: Tensor) -> Tensor:
        """Elementwise."""
        weight, grad = values
        return weight.abs() + self.balance * grad.abs()


@dataclass(frozen=True)
class GradientAverage:
    """A running average of the dense gradient: ``decay`` of the average so far plus ``1 - decay`` of the gradient.

    ``Signal.MOMENTUM`` is ``GradientAverage(0.9)``. An average over about ``n`` steps has a decay of ``1 - 1 / n``.
    """

    decay: float = 0.9
    reads = (Signal.MOMENTUM,)

    def __post_init__(self) -> None:
        check_score(self)

    def __call__(self, *values: Tensor) -> Tensor:
        """The average itself."""
        return values[0]
