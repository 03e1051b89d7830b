"""What a packed layer keeps of a step whose gradients a rewiring will rank."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class BackwardRecord:
    """Inputs and output gradients of a layer since the last optimizer step.

    The gradient of the dense weight, which a rewiring ranks at inactive positions, is computed from these pairs. Where
    other code reads the weight as a dense tensor, the gradient of that tensor is added.
    """

    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    dense_gradients: list[Tensor] = field(default_factory=list)

    def record(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        """Keep the input ``x`` now and the gradient of the output ``y`` when backward computes it.

        If the weight has no gradient, earlier ones were cleared without a step: their pairs are dropped with them.
        """
        if weight.grad is None:
            self.pairs.clear()
            self.dense_gradients.clear()
        if y.requires_grad:
            layer_input = x.detach()
            y.register_hook(lambda grad: self.pairs.append((layer_input, grad.detach())))
