"""One weight of the packed store: values sorted by position, the positions, and nothing else."""

import torch
from torch import Tensor

from rewire.core.dense_ops import mask_of
from rewire.core.layer import Signal, read_score
from rewire.core.score import AnySignal
from rewire.core.topology import ScoredPositions
from rewire.model.select import SelectedWeight
from rewire.nn.packed import pack_module
from rewire.stores.copies import add_link
from rewire.stores.packed_gradient import PackedGradient


class PackedLayer:
    """One weight as values and positions. The values are sorted by position."""

    def __init__(self, weight: SelectedWeight, active: Tensor, values: Tensor) -> None:
        self.spec = weight.spec
        self.name, self.shape = weight.spec.name, weight.spec.shape
        self.module = pack_module(weight.module, active, values, weight.spec.name)
        self.parameter = weight.parameter
        self.link = add_link(self.module, self.parameter, self.name)
        self.link.on_load = self._loaded
        # The positions that the optimizer's state and the gradient belong to; loading replaces those of the module.
        self.state_positions = self.gradient_positions = self.module.weight_positions
        self.span = range(weight.spec.numel)
        self.average: Tensor | None = None
        self.frozen = False
        self.gradient = PackedGradient(self.module, self.parameter)

    @property
    def nnz(self) -> int:
        """How many weights exist."""
        return len(self.parameter)

    @property
    def density(self) -> float:
        """The share of the weights that exist."""
        return self.nnz / self.shape.numel()

    @property
    def mask(self) -> Tensor:
        """Which weights exist, made when asked: for analysis, never for training."""
        return mask_of(self.active(), self.shape)

    def active(self) -> Tensor:
        """The flat positions of the weights that exist."""
        return self.module.weight_positions.long()

    @property
    def state_is_old(self) -> bool:
        """Whether positions were loaded, and the optimizer's state is not rearranged for them yet."""
        return self.state_positions is not self.module.weight_positions

    def _loaded(self) -> None:
        """Drop a gradient whose entries belong to positions from before loading."""
        before, self.gradient_positions = self.gradient_positions, self.module.weight_positions
        if self.parameter.grad is not None and not torch.equal(before.long(), self.active().to(before.device)):
            self.parameter.grad = None

    def read(self, signal: AnySignal) -> Tensor:
        """The signal of the weights that exist."""
        if not isinstance(signal, Signal):
            return read_score(self, signal)
        assert signal is not Signal.MOMENTUM, "sparsify refuses methods that read momentum"
        values = self.parameter.detach()
        if signal is Signal.GRAD:
            grad = self.parameter.grad
            return torch.zeros_like(values) if grad is None else grad.detach().clone()  # a step may overwrite it
        return values.sign() if signal is Signal.SIGN else values.clone()

    def top_inactive(self, signal: AnySignal, k: int, floor: float = 0.0) -> ScoredPositions:
        """The ``k`` inactive positions of largest gradient."""
        return self.gradient.top_inactive(signal, k, floor)

    def read_at(self, signal: AnySignal, positions: Tensor) -> Tensor:
        """The signal at sorted inactive positions."""
        return self.gradient.read_at(signal, positions)

    def read_state(self, state: Tensor) -> Tensor:
        """An optimizer's state tensor has a value for each weight, in the order of ``active()``."""
        return state

    def write_state(self, state: Tensor, rows: Tensor, values: Tensor | float) -> None:
        """Write an optimizer's state for some of the active weights, given by their rows in ``active()``."""
        state[rows] = values.to(state) if isinstance(values, Tensor) else values

    def is_finite(self) -> bool:
        """Whether the gradients of weights and outputs are, and the inputs that they are multiplied by."""
        return self.gradient.is_finite()

    def has_no_gradient(self) -> bool:
        """Whether no gradient arrived, or only zeros."""
        return self.gradient.is_absent()
