"""The seam between algorithms and storage: flat positions and integer counts, never masks."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rewire.core.ranks import ALONE, Ranks
from rewire.core.score import AnySignal, ScoreLike, evaluate
from rewire.core.score import Signal as Signal
from rewire.core.topology import Edit, ScoredPositions


class Layer(Protocol):
    """Read-only view of one sparse weight: counts of the whole weight, positions and values of this process's shard."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> torch.Size: ...
    @property
    def frozen(self) -> bool:
        """Whether the layer is counted in the budget but never rewired."""

    @property
    def nnz(self) -> int:
        """How many weights are active."""

    @property
    def span(self) -> range:
        """The flat positions that this process holds: all of them, unless the layer is sharded."""

    def active(self) -> Tensor:
        """The flat positions of the active weights: ``(nnz,)`` int64, sorted."""

    def read(self, signal: AnySignal) -> Tensor:
        """The signal or score at the active positions: ``(nnz,)``, in the order of ``active()``."""

    def read_at(self, signal: AnySignal, positions: Tensor) -> Tensor:
        """The signal or score at sorted inactive positions that this process holds, in their order."""

    def top_inactive(self, signal: AnySignal, k: int, floor: float = 0.0) -> ScoredPositions:
        """The ``k`` inactive positions of largest ``|signal|``, of those at or above ``floor`` and not zero."""


@dataclass(frozen=True)
class LayerSpec:
    """What a start knows about a weight: its name, its shape and which units it connects.

    ``matrix`` is the same weight, entry by entry, in the shape of a (grouped) convolution: ``(outputs, inputs of a
    group, *taps)``, or ``(inputs, outputs of a group, *taps)`` if ``transposed``. It differs from ``shape`` where a
    parameter has further dimensions. A ``stack`` holds several matrices one after the other, the experts of a mixture
    for instance; each is a group of its own.

    >>> LayerSpec("experts", torch.Size([8, 6, 4]), groups=8, matrix=torch.Size([48, 4]), stack=8).numel
    192
    """

    name: str
    shape: torch.Size
    groups: int = 1
    transposed: bool = False
    matrix: torch.Size = field(default_factory=torch.Size)
    stack: int = 1

    def __post_init__(self) -> None:
        if not self.matrix:
            object.__setattr__(self, "matrix", self.shape)

    @property
    def numel(self) -> int:
        """How many weights a dense layer has."""
        return math.prod(self.shape)


@dataclass
class Context:
    """What parts may read besides the layers: the step, the seed, the method's memory and the other ranks.

    For a start only, while ``sparsify`` runs: ``model`` is the model, ``parameters`` and ``weights`` are its parameters
    and their dense values in the order of the specs (of a sharded parameter, gathered when they are read).
    """

    step: int = 0
    seed: int = 0
    memory: dict[str, Any] = field(default_factory=dict)
    ranks: Ranks = ALONE
    model: nn.Module | None = None
    parameters: Sequence[nn.Parameter] | None = None
    weights: Sequence[Tensor] | None = None

    def generator(self, purpose: str, layer: int) -> torch.Generator:
        """A fresh generator for one purpose in one layer at this step: ranks agree and a resumed run draws alike."""
        key = f"{self.seed}/{self.step}/{layer}/{purpose}".encode()
        digest = hashlib.blake2b(key, digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def spec_of(layer: Layer) -> LayerSpec:
    """The spec of a layer; of one that has none, its name and shape."""
    spec = getattr(layer, "spec", None)
    return spec if isinstance(spec, LayerSpec) else LayerSpec(layer.name, layer.shape)


def numel(layer: Layer) -> int:
    """How many weights a dense layer would have."""
    return math.prod(layer.shape)


def droppable(layer: Layer) -> int:
    """How many weights can be dropped from a layer: all but one, or none if it is frozen."""
    return 0 if layer.frozen else max(layer.nnz - 1, 0)


def read_score(layer: Layer, score: ScoreLike) -> Tensor:
    """A score at the active positions of a layer."""
    return evaluate(score, [layer.read(signal) for signal in score.reads])


def no_edit(layer: Layer) -> Edit:
    """An edit that changes nothing."""
    empty = layer.active()[:0]
    return Edit(empty, empty, torch.empty(0, device=empty.device))
