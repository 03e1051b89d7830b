"""Starts that run the model before training: SNIP, GraSP, SynFlow; and the layer densities of any start alone."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from rewire.core.dense_ops import mask_of
from rewire.core.layer import Context, LayerSpec
from rewire.core.protocols import Rule, Start
from rewire.core.score import qualified_name
from rewire.core.topology import sample_inactive
from rewire.core.validate import check_members
from rewire.parts.start_from_weights import dense_weights, largest

Loss = Callable[[nn.Module], Tensor]


@dataclass(frozen=True, repr=False)
class _FromLoss:
    """A start that differentiates a loss; known by the name of the function, because checkpoints store its ``repr``."""

    loss: Loss = field(compare=False)
    rule: Rule | None = None
    loss_name: str = field(init=False)
    reads_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss_name", qualified_name(self.loss))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.loss_name!r}, rule={self.rule!r})"


@dataclass(frozen=True, repr=False)
class Snip(_FromLoss):
    """The weights of largest ``|weight * gradient|`` of one batch (SNIP).

    ``loss`` gets the model and returns the loss of a batch: ``lambda model: cross_entropy(model(x), y)``. ``rule`` says
    how many weights each layer gets; without one, the largest of the whole network are taken.
    """

    def __call__(self, specs: Sequence[LayerSpec], n: int, ctx: Context) -> list[Tensor]:
        """Compute the gradients once; the model, its gradients and the global random state stay as they are."""
        parameters = _parameters(specs, ctx, self)
        with _unchanged(_model(ctx, self)) as model:
            gradients = _gradients(self, self.loss(model), parameters)
        return largest(specs, [(w * g).abs() for w, g in zip(parameters, gradients, strict=True)], n, self.rule)


@dataclass(frozen=True, repr=False)
class Grasp(_FromLoss):
    """The largest ``weight * (Hessian gradient)`` of one batch, which preserve the norm of the gradient best (GraSP).

    ``loss`` and ``rule`` as for ``Snip``.
    """

    def __call__(self, specs: Sequence[LayerSpec], n: int, ctx: Context) -> list[Tensor]:
        """Compute the gradient, and the gradient of its product with itself: the Hessian times the gradient."""
        parameters = _parameters(specs, ctx, self)
        with _unchanged(_model(ctx, self)) as model:
            gradients = _gradients(self, self.loss(model), parameters, create_graph=True)
            product = torch.stack([(g * g.detach()).sum() for g in gradients]).sum()
            hessian_gradients = _gradients(self, product, parameters)
        return largest(specs, [w * h for w, h in zip(parameters, hessian_gradients, strict=True)], n, self.rule)


@dataclass(frozen=True)
class SynFlow:
    """The weights that carry the most signal, found in rounds without data (SynFlow).

    All weights are replaced by their magnitudes and the input by ones, of this ``shape`` without the batch dimension.
    With ``R`` the sum of the outputs, the score of a weight is ``weight * dR / dweight``. In each of ``rounds`` rounds
    the lowest scores of the whole network go, along an exponential curve down to the density, and scores are computed
    anew.
    """

    shape: tuple[int, ...]
    rounds: int = 100
    reads_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.shape, tuple) or not all(isinstance(size, int) and size > 0 for size in self.shape):
            raise ValueError(f"shape is that of an input without the batch, such as (3, 32, 32), not {self.shape!r}")
        if not isinstance(self.rounds, int) or self.rounds < 1:
            raise ValueError(f"SynFlow needs at least one round, not {self.rounds!r}")

    def __call__(self, specs: Sequence[LayerSpec], n: int, ctx: Context) -> list[Tensor]:
        """Work on a copy of the model in double precision."""
        originals = _parameters(specs, ctx, self)
        model = copy.deepcopy(_model(ctx, self)).double().eval()
        matching = dict(zip(map(id, _model(ctx, self).parameters()), model.parameters(), strict=True))
        parameters = [matching[id(original)] for original in originals]
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                if tensor.is_floating_point():
                    tensor.abs_()
        total = sum(spec.numel for spec in specs)
        positions: list[Tensor] = []
        for step in range(1, self.rounds + 1):
            count = n if step == self.rounds else max(round(total * (n / total) ** (step / self.rounds)), n)
            positions = self._round(model, specs, parameters, positions, count)
        return positions

    def _round(
        self,
        model: nn.Module,
        specs: Sequence[LayerSpec],
        parameters: Sequence[nn.Parameter],
        positions: Sequence[Tensor],
        count: int,
    ) -> list[Tensor]:
        device = parameters[0].device
        with torch.enable_grad():
            flow = model(torch.ones(1, *self.shape, dtype=torch.float64, device=device)).sum()
            scores = [(w * g).detach() for w, g in zip(parameters, _gradients(self, flow, parameters), strict=True)]
        for score, spec, kept in zip(scores, specs, positions, strict=False):
            score[~mask_of(kept.to(device), spec.shape)] = -1.0  # what is gone stays gone
        chosen = largest(specs, scores, count, None)
        with torch.no_grad():
            for parameter, spec, kept in zip(parameters, specs, chosen, strict=True):
                parameter.mul_(mask_of(kept.to(device), spec.shape))
        return chosen


@dataclass(frozen=True)
class Shuffled:
    """As many weights in each layer as another start places there, at random positions: its layer densities alone."""

    start: Start

    def __post_init__(self) -> None:
        check_members("start", self.start)

    def __call__(self, specs: Sequence[LayerSpec], n: int, ctx: Context) -> list[Tensor]:
        """Count, then draw."""
        counts = [len(positions) for positions in self.start(specs, n, ctx)]
        nothing = torch.empty(0, dtype=torch.int64)
        return [
            sample_inactive(nothing, spec.numel, count, ctx.generator("start", i))
            for i, (spec, count) in enumerate(zip(specs, counts, strict=True))
        ]


def _model(ctx: Context, start: object) -> nn.Module:
    if ctx.model is None:
        raise ValueError(f"start={start!r} runs the model: only sparsify can call it")
    return ctx.model


def _parameters(specs: Sequence[LayerSpec], ctx: Context, start: object) -> list[nn.Parameter]:
    """The parameters of the layers, whole and finite."""
    parameters = [] if ctx.parameters is None else list(ctx.parameters)
    if any(hasattr(parameter, "_local_tensor") for parameter in parameters):
        raise ValueError(
            f"start={start!r} runs the model, which is sharded: compute the start before fully_shard, and give its "
            "positions by layer name"
        )
    dense_weights(specs, ctx, start)
    return parameters


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[nn.Module]:
    """Run a model with gradients, and put its buffers and the global random state back."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"} - {None})
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=devices):
            yield model
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _gradients(
    start: object, value: object, parameters: Sequence[nn.Parameter], create_graph: bool = False
) -> list[Tensor]:
    """The gradients of a number, checked: finite, and not all zero."""
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        raise ValueError(f"the loss of start={start!r} must be one number that depends on the weights, not {value!r}")
    gradients = torch.autograd.grad(value.sum(), parameters, create_graph=create_graph, materialize_grads=True)
    if not all(bool(gradient.isfinite().all()) for gradient in gradients):
        raise ValueError(f"the gradients of start={start!r} are not finite")
    if not any(bool(gradient.any()) for gradient in gradients):
        raise ValueError(f"the gradients of start={start!r} are all zero: no signal passes through the model")
    return list(gradients)
