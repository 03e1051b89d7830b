"""Birth: the values of newly grown weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rewire.core.layer import Context
from rewire.core.views import Edited


@dataclass(frozen=True)
class Tiny:
    """A small constant, so that a new weight hardly changes the output; 1e-10 in GGR's paper."""

    value: float = 1e-10

    def __call__(self, n: int, layer: Edited, ctx: Context) -> Tensor:
        """``n`` times the constant."""
        return torch.full((n,), self.value, dtype=torch.float64)


@dataclass(frozen=True)
class RandomSign:
    """A small constant with a random sign (DeepR)."""

    value: float = 1e-10

    def __call__(self, n: int, layer: Edited, ctx: Context) -> Tensor:
        """``n`` values with independent fair signs."""
        bits = torch.randint(2, (n,), generator=ctx.generator("birth", layer.index))
        return (2 * bits - 1).double() * self.value
