"""Activation functions that a token-major linear layer applies to its output."""

import math
from dataclasses import dataclass
from enum import IntEnum

import torch.nn.functional as F
from torch import Tensor


class Kind(IntEnum):
    """Which function; native/activation.hpp has the same numbers."""

    IDENTITY = 0
    RELU = 1
    GELU = 2
    GELU_TANH = 3
    SILU = 4


@dataclass(frozen=True)
class Activation:
    """An activation function; ``limit``: the upper bound of a ReLU."""

    kind: Kind
    limit: float = math.inf

    def __call__(self, x: Tensor) -> Tensor:
        """The reference implementation: torch's own function.

        >>> import torch
        >>> Activation(Kind.RELU, 6.0)(torch.tensor([-1.0, 2.0, 8.0]))
        tensor([0., 2., 6.])
        """
        if self.kind is Kind.RELU:
            return F.relu(x) if math.isinf(self.limit) else F.hardtanh(x, 0.0, self.limit)
        if self.kind in (Kind.GELU, Kind.GELU_TANH):
            return F.gelu(x, approximate="none" if self.kind is Kind.GELU else "tanh")
        return F.silu(x) if self.kind is Kind.SILU else x

    @property
    def reads_output(self) -> bool:
        """Whether the gradient can be computed from the output, so that the input need not be kept."""
        return self.kind is Kind.RELU


IDENTITY = Activation(Kind.IDENTITY)
