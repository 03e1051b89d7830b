"""What a method reads of a masked layer: weights, gradients and averages exist as dense tensors, at all positions."""

from abc import ABC, abstractmethod
from typing import cast

import torch
from torch import Tensor

from rewire.core.dense_ops import is_finite, take, top_where_inactive
from rewire.core.layer import Layer, Signal, read_score
from rewire.core.score import AnySignal, ScoreLike, evaluate
from rewire.core.topology import ScoredPositions
from rewire.distributed.dtensor import local


class MaskedSignals(ABC):
    """The signals of a masked layer."""

    average: Tensor | None  # running average of the dense gradient, for methods that read momentum
    span: range

    @property
    @abstractmethod
    def local_mask(self) -> Tensor:
        """The part of the mask that is in this process."""

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """The part of the parameter that is in this process."""

    @property
    @abstractmethod
    def grad(self) -> Tensor | None:
        """The part of the gradient that is in this process."""

    @abstractmethod
    def active(self) -> Tensor:
        """The flat positions of the weights that exist."""

    @abstractmethod
    def to_local(self, positions: Tensor) -> Tensor:
        """Positions of the whole weight as positions in the local tensors, on their device."""

    def read(self, signal: AnySignal) -> Tensor:
        """The signal at the active positions."""
        if not isinstance(signal, Signal):
            return read_score(cast(Layer, self), signal)
        values = take(self._dense(signal), self.to_local(self.active()))
        return values.sign() if signal is Signal.SIGN else values

    def top_inactive(self, signal: AnySignal, k: int, floor: float = 0.0) -> ScoredPositions:
        """The ``k`` inactive positions of largest ``|signal|``."""
        dense = self._dense(signal) if isinstance(signal, Signal) else self._dense_score(signal)
        top = top_where_inactive(dense, self.local_mask, k, floor)
        return ScoredPositions(top.values, top.positions + self.span.start) if self.span.start else top

    def read_at(self, signal: AnySignal, positions: Tensor) -> Tensor:
        """The signal at inactive positions of this process."""
        if not isinstance(signal, Signal):
            return evaluate(signal, [self.read_at(basic_signal, positions) for basic_signal in signal.reads])
        values = take(self._dense(signal), self.to_local(positions))
        return values.sign() if signal is Signal.SIGN else values

    def _dense(self, signal: Signal) -> Tensor:
        if signal is Signal.MOMENTUM:
            assert self.average is not None, "the method did not declare that it reads momentum"
            return local(self.average)
        if signal is Signal.GRAD:
            grad = self.grad
            return torch.zeros_like(self.weight) if grad is None else grad.detach()
        return self.weight

    def _dense_score(self, score: ScoreLike) -> Tensor:
        dense = [self._dense(signal).sign() if signal is Signal.SIGN else self._dense(signal) for signal in score.reads]
        return evaluate(score, dense)

    def is_finite(self) -> bool:
        """Whether the whole gradient is finite."""
        return self.grad is None or is_finite(self.grad)

    def has_no_gradient(self) -> bool:
        """Whether no gradient arrived, or only zeros."""
        return self.grad is None or not bool(self.grad.any())

    def update_average(self, decay: float, scale: Tensor | None) -> None:
        """Add the dense gradient to its running average; where it is not finite, the average stays as it is."""
        assert self.average is not None
        if (grad := self.grad) is not None:
            if self.average.device != grad.device:  # the model may have moved
                self.average = self.average.to(grad.device)
            grad, average = grad if scale is None else grad / scale, local(self.average)
            moved = average.lerp(grad.to(average), 1 - decay)
            torch.where(grad.isfinite(), moved, average, out=average)
