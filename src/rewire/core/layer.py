"""The seam between algorithms and storage: flat positions and integer counts, never masks."""

import hashlib
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import torch
from torch import Tensor

from rewire.core.ranks import ALONE, Ranks
from rewire.core.topology import Edit, Top


class Signal(Enum):
    """What may be read about a weight."""

    WEIGHT = "weight"
    GRAD = "grad"
    MOMENTUM = "momentum"  # an average of the dense gradient
    SIGN = "sign"  # of the weight before the optimizer's last update

    def __repr__(self) -> str:  # so that the repr of a method is code that builds it
        return f"Signal.{self.name}"


class Layer(Protocol):
    """Read-only view of one sparse weight: counts of the whole weight, positions and values of this process's shard."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> torch.Size: ...
    @property
    def frozen(self) -> bool:
        """Counted in the budget, but neither dropped from nor grown into."""

    @property
    def nnz(self) -> int:
        """How many weights are active."""

    @property
    def span(self) -> range:
        """The flat positions that this process holds: all of them, unless the layer is sharded."""

    def active(self) -> Tensor:
        """The flat positions of the active weights: ``(nnz,)`` int64, sorted."""

    def read(self, signal: Signal) -> Tensor:
        """The signal at the active positions: ``(nnz,)``, aligned with ``active()``."""

    def top_inactive(self, signal: Signal, k: int, floor: float = 0.0) -> Top:
        """The ``k`` inactive positions of largest ``|signal|``, of those at or above ``floor`` and not zero."""


@dataclass(frozen=True)
class LayerSpec:
    """What a start knows about a weight: its name, its shape and which units it connects."""

    name: str
    shape: torch.Size
    groups: int = 1
    transposed: bool = False

    @property
    def numel(self) -> int:
        """How many weights a dense layer has."""
        return math.prod(self.shape)


@dataclass
class Context:
    """What a rewiring knows besides the layers: the step, the seed, the method's memory and the other ranks."""

    step: int = 0
    seed: int = 0
    memory: dict[str, Any] = field(default_factory=dict)
    ranks: Ranks = ALONE

    def generator(self, purpose: str, layer: int) -> torch.Generator:
        """A fresh generator for one purpose in one layer at this step: ranks agree and a resumed run draws alike."""
        key = f"{self.seed}/{self.step}/{layer}/{purpose}".encode()
        digest = hashlib.blake2b(key, digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def numel(layer: Layer) -> int:
    """How many weights a dense layer would have."""
    return math.prod(layer.shape)


def spare(layer: Layer) -> int:
    """How many weights a layer can lose: a layer keeps its last one."""
    return 0 if layer.frozen else max(layer.nnz - 1, 0)


def no_edit(layer: Layer) -> Edit:
    """An edit that changes nothing."""
    empty = layer.active()[:0]
    return Edit(empty, empty, torch.empty(0, device=empty.device))
