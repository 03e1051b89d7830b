"""What the rewirer asks of whoever holds the numbers: a ``Store`` of layers that can be read, judged and edited."""

from collections.abc import Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from rewire.core.layer import Layer, LayerSpec, Signal
from rewire.core.ranks import Ranks, total
from rewire.core.topology import Edit


class StoredLayer(Layer, Protocol):
    """A layer of a store: what algorithms read, and what the rewirer and its table want to know besides."""

    spec: LayerSpec
    parameter: nn.Parameter
    frozen: bool
    average: Tensor | None  # of the dense gradient, for methods that read momentum

    @property
    def module(self) -> nn.Module:
        """Whose weight it is."""

    @property
    def mask(self) -> Tensor:
        """Which weights exist, as a dense bool tensor; a packed layer makes it when asked."""

    @property
    def density(self) -> float:
        """The share of the weights that exist."""

    def is_finite(self) -> bool:
        """Whether all that could be ranked at this step is finite."""

    def is_silent(self) -> bool:
        """Whether no gradient arrived, or only zeros."""


class Store(Protocol):
    """All sparse layers of a model, and the optimizer whose state moves with them."""

    name: ClassVar[str]
    supplies: ClassVar[frozenset[Signal]]  # what methods may read
    reads: ClassVar[frozenset[str]]  # the stores whose checkpoints it can load
    spans_ranks: ClassVar[bool]  # whether ranks that train one model together can rewire it
    keeps_shapes: ClassVar[bool]  # whether parameters have the same shape after a rewiring

    @classmethod
    def refuse_optimizer(cls, optimizer: torch.optim.Optimizer) -> None:
        """Raise if the store cannot give this optimizer what it reads."""

    optimizer: torch.optim.Optimizer
    keep_inactive: bool  # what the next step will rank must survive until then
    ranks: Ranks  # the processes that hold the layers together

    @property
    def layers(self) -> Sequence[StoredLayer]:
        """In the order of the model."""

    @property
    def notes(self) -> dict[str, str]:
        """Layers that are held in another way than the store's name says, with the reason."""

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the state of this optimizer from now on."""

    def track_momentum(self) -> None:
        """Keep an average of the dense gradient of every layer from now on."""

    def before_step(self) -> None:
        """Leave only active gradients to the optimizer."""

    def clear(self) -> None:
        """The same, when a closure has been evaluated once more."""

    def after_step(self, look: bool) -> None:
        """Undo or forget what must not outlive the optimizer's step; ``look``: waiting for the device is allowed."""

    def apply(self, edits: Sequence[Edit]) -> None:
        """Move weights, gradients and optimizer state to the new topology."""

    def recount(self) -> None:
        """Learn how many weights of each layer the ranks hold together."""

    def refresh(self) -> None:
        """The same, if something was loaded since the last step."""

    def remove(self) -> None:
        """Detach from the model."""


def all_silent(layers: Sequence[StoredLayer], ranks: Ranks) -> bool:
    """Whether no layer has a gradient other than zeros, on any rank."""
    return not any(total(ranks, [int(not layer.is_silent()) for layer in layers]))
