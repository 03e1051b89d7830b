"""A chain of stages as one autograd node: convolution, batch norm, sum, ReLU, 2x2 max pooling, forward and backward.

Stage after stage, the native kernels run on activations in HWCN layout; torch and Python come in between once per chain
instead of once per module. Sums, and their gradients, are part of the kernels before and after them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rewire._torch import differentiable_once
from rewire.kernels.batch import conv, norm, relu
from rewire.kernels.batch.norm import Moments
from rewire.kernels.batch.ops import refuse_mismatch
from rewire.kernels.geometry import Geometry, to_hwcn


class Stage(NamedTuple):
    """A convolution and the batch norm behind it, with what follows: a sum, a ReLU, a 2x2 max pooling.

    Activations have numbers: 0 is the input of the chain, i + 1 the output of stage i.
    """

    source: int
    geometry: Geometry
    eps: float
    relu_limit: float = -1.0  # upper limit of the ReLU; below zero: no ReLU
    addend: int | None = None  # the activation that is added between batch norm and ReLU
    pool: bool = False  # only without an addend


class StageTensors(NamedTuple):
    """The parameters and positions of a stage."""

    values: Tensor
    conv_bias: Tensor | None
    weight: Tensor
    bias: Tensor
    positions: Tensor


def run_chain(x: Tensor, stages: Sequence[Stage], tensors: Sequence[StageTensors]) -> tuple[Tensor, list[Moments]]:
    """The output of the last stage, and mean and variance of the output of every convolution."""
    moments = [(torch.empty_like(t.weight), torch.empty_like(t.weight)) for t in tensors]
    flat = [tensor for stage in tensors for tensor in stage]
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *flat))
    if not needs_grad:
        return _forward(x, stages, tensors, moments)[-1], moments
    y: Tensor = _Chain.apply(x, tuple(stages), moments, *flat)
    return y, moments


def _forward(
    x: Tensor,
    stages: Sequence[Stage],
    tensors: Sequence[StageTensors],
    moments: Sequence[Moments],
    before_norm: list[Tensor] | None = None,
) -> list[Tensor]:
    """All activations, by number; ``before_norm`` receives the outputs of the convolutions."""
    activations = [to_hwcn(x).permute(3, 2, 0, 1)]
    for stage, given, known in zip(stages, tensors, moments, strict=True):
        source = activations[stage.source]
        refuse_mismatch(source, given.values, given.positions, stage.geometry)
        z = conv.forward(source, given.values, given.positions, given.conv_bias, stage.geometry, moments=known)
        addend = None if stage.addend is None else activations[stage.addend]
        y = norm.forward(z, given.weight, given.bias, known, stage.eps, stage.relu_limit, stage.pool, addend)
        activations.append(y)
        if before_norm is not None:
            before_norm.append(z)
    return activations


class _Chain(torch.autograd.Function):
    """``apply(x, stages, moments, *tensors)``: five tensors for each stage, as in ``StageTensors``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stages: tuple[Stage, ...], moments: list[Moments], *flat: Tensor | None) -> Tensor:
        tensors = [StageTensors(*flat[at : at + 5]) for at in range(0, len(flat), 5)]  # type: ignore[arg-type]
        before_norm: list[Tensor] = []
        activations = _forward(x, stages, tensors, moments, before_norm)
        ctx.stages = stages
        flat_moments = [moment for pair in moments for moment in pair]
        reads_output = stages[-1].addend is not None
        ctx.save_for_backward(
            *flat, *flat_moments, *before_norm, *activations[:-1], activations[-1] if reads_output else None
        )
        return activations[-1]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad
        gradients = _ChainBackward(ctx.stages, ctx.saved_tensors, needed[0]).run(grads[0], needed[3:])
        return (gradients.of_input, None, None, *gradients.of_tensors)


class _Gradients(NamedTuple):
    of_input: Tensor | None
    of_tensors: list[Tensor | None]


class _ChainBackward:
    """The backward pass over a chain: the stages in reverse order."""

    def __init__(self, stages: Sequence[Stage], saved: Sequence[Any], input_needed: bool) -> None:
        count = len(stages)
        self.stages, self.input_needed = stages, input_needed
        self.tensors = [StageTensors(*saved[5 * i : 5 * i + 5]) for i in range(count)]
        self.moments = [(saved[5 * count + 2 * i], saved[5 * count + 2 * i + 1]) for i in range(count)]
        self.before_norm, self.activations = saved[7 * count : 8 * count], saved[8 * count :]
        self.gradients: dict[int, Tensor] = {}  # of activations, by number; what several stages read is added up

    def run(self, grad: Tensor, needed: Sequence[bool]) -> _Gradients:
        """The gradients of the input and of the tensors of all stages."""
        self.gradients[len(self.stages)] = grad
        of_tensors: list[Tensor | None] = []
        for index in reversed(range(len(self.stages))):
            of_tensors = [*self._stage_gradients(index, needed[5 * index : 5 * index + 5]), *of_tensors]
        return _Gradients(self.gradients.get(0), of_tensors)

    def _stage_gradients(self, index: int, needed: Sequence[bool]) -> list[Tensor | None]:
        stage, given = self.stages[index], self.tensors[index]
        grad_z, grad_weight, grad_bias = self._norm_gradients(index)
        source_needed = stage.source > 0 or self.input_needed
        grad_source, grad_values = None, None
        if source_needed or needed[0]:
            grad_source, grad_values = conv.backward(
                grad_z, self.activations[stage.source], given.values, given.positions, stage.geometry,
                (source_needed, needed[0]), self.gradients.get(stage.source),
            )  # fmt: skip
        if grad_source is not None:
            self.gradients[stage.source] = grad_source
        grad_conv_bias = grad_z.sum((0, 2, 3)) if needed[1] else None
        return [grad_values, grad_conv_bias, grad_weight, grad_bias, None]

    def _norm_gradients(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of what batch norm reads, of its weight and of its bias; that of an addend is noted."""
        stage, given, known = self.stages[index], self.tensors[index], self.moments[index]
        grad, x = self.gradients.pop(index + 1), self.before_norm[index]
        shared = (x, given.weight, given.bias, known, stage.eps)
        if stage.addend is None:
            return norm.backward(grad, *shared, stage.relu_limit, stage.pool)
        if stage.relu_limit >= 0:
            y = self.activations[index + 1]
            grad_addend, *others = norm.backward_add_relu(grad, y, *shared, stage.relu_limit)
        else:
            grad_addend = to_hwcn(grad).permute(3, 2, 0, 1)
            others = list(norm.backward(grad_addend, *shared, -1.0))
        if stage.addend > 0 or self.input_needed:
            known_part = self.gradients.get(stage.addend)
            self.gradients[stage.addend] = (
                grad_addend if known_part is None else relu.add_relu(known_part, grad_addend, -1.0)
            )
        return others[0], others[1], others[2]
