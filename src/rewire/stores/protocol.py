"""How weights are stored: what every ``Store`` and its layers offer to methods and to the ``Rewirer``."""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from rewire.core.layer import Layer, LayerSpec, Signal
from rewire.core.ranks import Ranks, total
from rewire.core.topology import Edit
from rewire.distributed.group import Group, Traffic
from rewire.stores.copies import Link
from rewire.stores.optimizer.optimizers import Optimizers


class StoredLayer(Layer, Protocol):
    """A layer of a store: the ``Layer`` that methods read, and what the rewirer and its table need besides."""

    spec: LayerSpec
    parameter: nn.Parameter
    frozen: bool
    link: Link  # to the copies of the weight
    average: Tensor | None  # running average of the dense gradient, for methods that read momentum

    @property
    def state_is_old(self) -> bool:
        """Whether positions were loaded, and the optimizer's state is rearranged for them before the next step."""

    @property
    def module(self) -> nn.Module:
        """The module that owns the weight."""

    @property
    def mask(self) -> Tensor:
        """Which weights exist, as a dense bool tensor; a packed layer builds it on demand."""

    @property
    def density(self) -> float:
        """The share of the weights that exist."""

    def read_state(self, state: Tensor) -> Tensor:
        """The values of an optimizer's state tensor at the active positions of this process."""

    def write_state(self, state: Tensor, rows: Tensor, values: Tensor | float) -> None:
        """Write an optimizer's state for some of the active weights, given by their rows in ``active()``."""

    def is_finite(self) -> bool:
        """Whether all gradients that this step could rank are finite."""

    def has_no_gradient(self) -> bool:
        """Whether no gradient arrived, or only zeros."""


class Store(Protocol):
    """All sparse layers of a model, and the optimizers whose state moves with them."""

    name: ClassVar[str]
    supplies: ClassVar[frozenset[Signal]]  # what methods may read
    reads: ClassVar[frozenset[str]]  # the stores whose checkpoints it can load
    spans_ranks: bool  # whether ranks that train one model together can rewire it
    keeps_shapes: ClassVar[bool]  # whether parameters have the same shape after a rewiring

    @classmethod
    def refuse_optimizers(cls, optimizers: Optimizers, weights: Mapping[str, Tensor]) -> None:
        """Raise if the store cannot give an optimizer of one of these weights what it reads."""

    optimizers: Optimizers
    keep_inactive_grads: bool  # whether the next step ranks the gradients of inactive weights
    ranks: Ranks  # the processes that hold the layers together

    @property
    def layers(self) -> Sequence[StoredLayer]:
        """In the order of the model."""

    @property
    def notes(self) -> dict[str, str]:
        """Layers that are stored in another way than the store's name says, with the reason."""

    @property
    def resized(self) -> list[nn.Parameter]:
        """The parameters that a rewiring resizes: DDP must leave them out."""

    def average_over(self, copies: Group, parameters: Iterable[nn.Parameter]) -> None:
        """Average the gradients of these parameters over ranks that train copies of the model, and rank the averages.

        Those of all other parameters are left to DDP. ``parameters``: all of the model.
        """

    @property
    def gradient_traffic(self) -> Traffic:
        """What this process sent to average gradients so far."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The first optimizer: in most trainings there is no other."""

    def follow(self, optimizers: Optimizers) -> None:
        """Move the state of these optimizers from now on."""

    def track_momentum(self, decay: float) -> None:
        """Keep a running average of the dense gradient of every layer from now on."""

    def settle_gradients(self) -> None:
        """Before gradients are ranked: raise if they are not those that the optimizer will use."""

    def before_step(self) -> set[str]:
        """Leave only active gradients to the optimizers. Once per step, before the first of them.

        Returns the names of layers with weights that are new since positions were loaded without optimizer state.
        """

    def clear_inactive_grads(self) -> None:
        """The same, after a closure was evaluated again, or before the other optimizers, within one step."""

    def after_step(self, may_wait: bool) -> None:
        """Undo what an optimizer must not have done, drop what was recorded; ``may_wait`` allows a device sync."""

    def apply(self, edits: Sequence[Edit]) -> None:
        """Move weights, gradients and optimizer state to the new topology."""

    def recount(self) -> None:
        """Count the weights of each layer over all ranks."""

    def refresh(self) -> None:
        """The same, if something was loaded since the last step."""

    def remove(self) -> None:
        """Detach from the model."""


def no_gradient_arrived(layers: Sequence[StoredLayer], ranks: Ranks) -> bool:
    """Whether no layer has a gradient other than zeros, on any rank."""
    return not any(total(ranks, [int(not layer.has_no_gradient()) for layer in layers]))
