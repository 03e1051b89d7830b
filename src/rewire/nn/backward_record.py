"""What a packed layer keeps of a step whose gradients a rewiring will rank."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rewire._torch import call_with_output_gradient, running_backward_pass, write_count


@dataclass
class BackwardRecord:
    """Inputs and output gradients of a layer since the last optimizer step.

    The gradient of the dense weight, which a rewiring ranks at inactive positions, is computed from these pairs. Where
    other code reads the weight as a dense tensor, the gradient of that tensor is added. A gradient counts when the
    backward pass in which it arrives accumulates the gradient of the weight: activation checkpointing runs a layer
    twice for one use, and ``torch.autograd.grad`` accumulates nothing.
    """

    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    dense_gradients: list[Tensor] = field(default_factory=list)
    _arrived: list[tuple[int, Tensor | None, Tensor]] = field(default_factory=list)  # by backward pass
    _write_counts: list[tuple[Tensor, int]] = field(default_factory=list)  # of the pairs, when they were recorded

    def record(self, x: Tensor, y: Tensor, inputs_first: bool = False) -> None:
        """Keep the input ``x`` now and the gradient of the output ``y`` when backward computes it.

        ``inputs_first``: the weight has the shape (inputs, outputs), so inputs and gradients change places.
        """
        if y.requires_grad:
            layer_input = _lasting(x)
            call_with_output_gradient(y, lambda grad: self._keep(layer_input, grad.detach(), inputs_first))

    def record_tokens(self, x: Tensor, y: Tensor, dtype: torch.dtype, inputs_first: bool = False) -> None:
        """The same for a linear layer of token-major activations (..., features), in the precision of the weights."""
        if y.requires_grad:
            layer_input = _lasting(x)
            call_with_output_gradient(
                y,
                lambda grad: self._keep(_as_images(layer_input, dtype), _as_images(grad.detach(), dtype), inputs_first),
            )

    def _keep(self, x: Tensor, grad: Tensor, inputs_first: bool) -> None:
        first, second = (grad, x) if inputs_first else (x, grad)
        self._arrived.append((running_backward_pass(), first, second))

    def record_dense(self, grad: Tensor) -> None:
        """Keep the gradient of a dense weight that other code has read."""
        self._arrived.append((running_backward_pass(), None, grad.detach()))

    def accumulated(self, was_cleared: bool, factor: float = 1.0) -> None:
        """The gradient of the weight was accumulated; ``was_cleared``: to nothing, or to zeros.

        ``factor``: by which hooks of the weight multiplied what backward computed.
        """
        if was_cleared:
            self.clear()
        now = running_backward_pass()
        arrived = [(x, _times(grad, factor)) for backward_pass, x, grad in self._arrived if backward_pass == now]
        self.pairs += [(x, grad) for x, grad in arrived if x is not None]
        self.dense_gradients += [grad for x, grad in arrived if x is None]
        self._write_counts += [
            (tensor, write_count(tensor)) for pair in arrived for tensor in pair if tensor is not None
        ]
        self._arrived.clear()

    def clear(self) -> None:
        """The gradient of the weight was cleared."""
        self.pairs.clear()
        self.dense_gradients.clear()
        self._write_counts.clear()

    def multiply(self, factor: float) -> None:
        """The gradient of the weight was multiplied, and more may be accumulated after that."""
        self.pairs = [(x, _times(grad, factor)) for x, grad in self.pairs]
        self.dense_gradients = [_times(grad, factor) for grad in self.dense_gradients]

    def was_overwritten(self) -> bool:
        """Whether other code wrote to an activation or its gradient after the backward pass."""
        return any(write_count(tensor) != count for tensor, count in self._write_counts)

    def __deepcopy__(self, _memo: object) -> None:
        """A copy of a layer records nothing."""

    def __reduce__(self) -> Any:
        return type(None), ()


def _lasting(x: Tensor) -> Tensor:
    """The input for as long as the record lasts: a batch may be loaded into the same buffer again, so it is copied."""
    return x.detach() if x.requires_grad else x.detach().clone()


def _times(grad: Tensor, factor: float) -> Tensor:
    return grad if factor == 1.0 else grad * factor


def _as_images(tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """Activations (..., features) as images of one pixel."""
    return tokens.to(dtype).reshape(-1, tokens.shape[-1], 1, 1)
