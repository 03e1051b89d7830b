"""A chain of stages as one autograd node: convolution, batch norm, sum, ReLU, 2x2 max pooling, forward and backward.

Native code runs all stages on activations in HWCN layout: one call forward, one call backward (native/chain.cpp).
Python allocates what they write and fills in the addresses. Sums, and their gradients, are part of the kernels before
and after them.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rewire._torch import differentiable_once
from rewire.kernels.batch.chain_plan import ChainShapes, Shape, Stage, chain_shapes, plan_gradients
from rewire.kernels.batch.conv import address
from rewire.kernels.batch.norm import Moments
from rewire.kernels.batch.ops import refuse_unpaired
from rewire.kernels.batch.plan import Plan
from rewire.kernels.csr import is_int64
from rewire.kernels.eligibility import runs_native
from rewire.kernels.geometry import to_hwcn
from rewire.kernels.library import native
from rewire.kernels.memory import POOL, empty_hwcn
from rewire.kernels.plan_cache import cached_plan
from rewire.kernels.structures import ChainStage, StageGradients
from rewire.kernels.threads import thread_count


class StageTensors(NamedTuple):
    """The parameters and positions of a stage."""

    values: Tensor
    conv_bias: Tensor | None
    weight: Tensor
    bias: Tensor
    positions: Tensor


TENSORS = len(StageTensors._fields)


def run_chain(x: Tensor, stages: Sequence[Stage], tensors: Sequence[StageTensors]) -> tuple[Tensor, list[Moments]]:
    """The output of the last stage, and mean and variance of the output of every convolution."""
    stages = tuple(stages)
    _refuse_mismatch(x, stages, tensors)
    flat = [tensor for stage in tensors for tensor in stage]
    moments = x.new_empty(2 * sum(stage.geometry.shape[0] for stage in stages))
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *flat))
    y: Tensor = (
        _Chain.apply(x, stages, moments, *flat) if needs_grad else _without_gradient(x, stages, moments, tensors)
    )
    return y, _by_stage(moments, stages)


def _refuse_mismatch(x: Tensor, stages: tuple[Stage, ...], tensors: Sequence[StageTensors]) -> None:
    """Raise if tensors do not fit the stages: native code trusts their types and shapes."""
    if x.dim() != 4 or not len(x):
        raise ValueError(f"a chain reads a batch of N, C, H, W activations with N > 0, not {tuple(x.shape)}")
    chain_shapes(stages, tuple(x.shape[1:]))
    for stage, stage_tensors in zip(stages, tensors, strict=True):
        refuse_unpaired(stage_tensors.values, stage_tensors.positions)
        vectors = [t for t in stage_tensors[1:4] if t is not None]
        if any(t.shape != stage.geometry.shape[:1] for t in vectors):
            shapes = [tuple(t.shape) for t in vectors]
            expected = stage.geometry.shape[:1]
            raise ValueError(f"biases and the weight of batch norm must have the shape {expected}, not {shapes}")
        if not runs_native(x, stage_tensors.values, *vectors):
            types = [f"{t.dtype} on {t.device}" for t in (x, stage_tensors.values, *vectors)]
            raise ValueError(f"chains run on native kernels, which take float32 tensors on the CPU, not {types}")


def _by_stage(moments: Tensor, stages: Sequence[Stage]) -> list[Moments]:
    """Mean and variance of every stage, in the memory of one tensor."""
    parts = moments.split([channels for stage in stages for channels in stage.geometry.shape[:1] * 2])
    return list(zip(parts[::2], parts[1::2], strict=True))


def _plans(stages: Sequence[Stage], shapes: ChainShapes, tensors: Sequence[StageTensors]) -> list[Plan]:
    return [
        cached_plan(Plan, stage.geometry, stage_tensors.positions, *shapes.activations[stage.source][1:])
        for stage, stage_tensors in zip(stages, tensors, strict=True)
    ]


class _Structures:
    """The stages as native code reads them, and all tensors whose addresses they hold."""

    def __init__(
        self,
        stages: Sequence[Stage],
        plans: Sequence[Plan],
        tensors: Sequence[StageTensors],
        moments: Tensor,
        before_norm: Sequence[Tensor],
        outputs: Sequence[Tensor | None],
    ) -> None:
        self.array = (ChainStage * len(stages))()
        self._kept: list[Tensor | None] = [moments, *before_norm, *outputs]
        filled = zip(stages, plans, tensors, _by_stage(moments, stages), before_norm, outputs, strict=True)
        for to, (stage, plan, stage_tensors, (mean, variance), convolved, output) in zip(
            self.array, filled, strict=True
        ):
            to.conv = plan.passes
            to.source, to.addend = stage.source, -1 if stage.addend is None else stage.addend
            to.pool, to.eps, to.relu_limit = stage.pool, stage.eps, stage.relu_limit
            to.mean, to.variance = mean.data_ptr(), variance.data_ptr()
            to.before_norm, to.output = convolved.data_ptr(), address(output)
            self._fill_parameters(to, plan, stage_tensors)

    def _fill_parameters(self, to: ChainStage, plan: Plan, given: StageTensors) -> None:
        values, positions = given.values.contiguous(), given.positions
        if plan.order is not None and plan.positions is not None:
            values, positions = values[plan.order], plan.positions
        conv_bias = None if given.conv_bias is None else given.conv_bias.contiguous()
        weight, bias = given.weight.contiguous(), given.bias.contiguous()
        to.values, to.conv_bias = values.data_ptr(), address(conv_bias)
        to.weight, to.bias = weight.data_ptr(), bias.data_ptr()
        to.positions, to.is_int64 = positions.data_ptr(), is_int64(positions)
        self._kept += (values, positions, conv_bias, weight, bias)


def _without_gradient(x: Tensor, stages: tuple[Stage, ...], moments: Tensor, tensors: Sequence[StageTensors]) -> Tensor:
    """The output alone: the outputs of the convolutions take turns in one buffer."""
    shapes = chain_shapes(stages, tuple(x.shape[1:]))
    buffer = POOL.empty(len(x) * max(math.prod(shape) for shape in shapes.before_norm))
    outputs = _empty(x, shapes.activations[1:])
    plans = _plans(stages, shapes, tensors)
    _run_forward(x, _Structures(stages, plans, tensors, moments, [buffer] * len(stages), outputs))
    return outputs[-1]


def _run_forward(x: Tensor, structures: _Structures) -> Tensor:
    """Call native code; returns its input in HWCN layout."""
    inputs = to_hwcn(x)
    native().rewire_chain_forward(
        structures.array, len(structures.array), inputs.data_ptr(), len(x), thread_count()
    )  # fmt: skip
    return inputs.permute(3, 2, 0, 1)


def _empty(like: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
    """Activations of these shapes, for the batch of ``like``."""
    return [empty_hwcn(like, len(like), *shape) for shape in shapes]


class _Chain(torch.autograd.Function):
    """``apply(x, stages, moments, *tensors)``: five tensors for each stage, as in ``StageTensors``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stages: tuple[Stage, ...], moments: Tensor, *flat: Tensor | None) -> Tensor:
        tensors, shapes = _grouped(flat), chain_shapes(stages, tuple(x.shape[1:]))
        before_norm, outputs = _empty(x, shapes.before_norm), _empty(x, shapes.activations[1:])
        ctx.stages, ctx.plans = stages, _plans(stages, shapes, tensors)
        inputs = _run_forward(x, _Structures(stages, ctx.plans, tensors, moments, before_norm, outputs))
        reads_output = stages[-1].addend is not None and stages[-1].relu_limit >= 0
        last = outputs[-1] if reads_output else None
        ctx.save_for_backward(*flat, moments, *before_norm, inputs, *outputs[:-1], last)
        return outputs[-1]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        needed, count = ctx.needs_input_grad, len(ctx.stages)
        saved = ctx.saved_tensors  # hooks may have moved them and changed their memory layout
        flat, (moments, *others) = saved[: TENSORS * count], saved[TENSORS * count :]
        before_norm, (inputs, *outputs) = (_hwcn(part) for part in (others[:count], others[count:]))
        structures = _Structures(ctx.stages, ctx.plans, _grouped(flat), moments, before_norm, outputs)
        gradients = _Gradients(ctx.stages, ctx.plans, inputs, flat, needed[0], needed[3:])
        gradients.run(structures, inputs, grads[0])
        return (gradients.of_input, None, None, *gradients.of_tensors())


def _grouped(flat: Sequence[Any]) -> list[StageTensors]:
    return [StageTensors(*flat[at : at + TENSORS]) for at in range(0, len(flat), TENSORS)]


def _hwcn(activations: Sequence[Tensor | None]) -> list[Any]:
    """The activations as [H, W, C, N]."""
    return [None if activation is None else to_hwcn(activation) for activation in activations]


class _Gradients:
    """The gradients of one backward pass: allocated, filled by native code and handed to autograd."""

    def __init__(
        self,
        stages: tuple[Stage, ...],
        plans: Sequence[Plan],
        inputs: Tensor,
        flat: Sequence[Any],
        input_needed: bool,
        needed: Sequence[bool],
    ) -> None:
        self._plans, self._bias_needed = plans, tuple(needed[1::TENSORS])
        height, width, channels, _ = inputs.shape
        self._plan = plan_gradients(stages, (channels, height, width), input_needed, self._bias_needed)
        tensors = _grouped(flat)
        like = inputs.permute(3, 2, 0, 1)
        self._gradient_buffers = [None, *_empty(like, self._plan.shapes[1:])]
        self._values = [
            torch.empty_like(stage_tensors.values, memory_format=torch.contiguous_format) if value_needed else None
            for stage_tensors, value_needed in zip(tensors, needed[::TENSORS], strict=True)
        ]
        self._norms = [
            (torch.empty_like(stage_tensors.weight), torch.empty_like(stage_tensors.bias)) for stage_tensors in tensors
        ]
        self.of_input = None if self._plan.input is None else self._gradient_buffers[self._plan.input]

    def run(self, structures: _Structures, inputs: Tensor, grad: Tensor) -> None:
        """Call native code. ``grad``: the gradient of the chain's output."""
        incoming = to_hwcn(grad)
        addresses: dict[int | None, int | None] = {None: None, 0: incoming.data_ptr()}
        addresses |= {
            number: address(self._gradient_buffers[number]) for number in range(1, len(self._gradient_buffers))
        }
        array = (StageGradients * len(self._plans))()
        for to, buffers, values, (weight, bias) in zip(
            array, self._plan.stages, self._values, self._norms, strict=True
        ):
            for name, number in zip(buffers._fields, buffers, strict=True):
                setattr(to, name, addresses[number])
            to.values, to.weight, to.bias = address(values), weight.data_ptr(), bias.data_ptr()
        native().rewire_chain_backward(
            structures.array, array, len(array), inputs.data_ptr(), inputs.shape[3], thread_count()
        )  # fmt: skip

    def of_tensors(self) -> list[Tensor | None]:
        """Of all tensors of all stages, in the order of ``StageTensors``."""
        grads: list[Tensor | None] = []
        for plan, buffers, values, norm, bias_needed in zip(
            self._plans, self._plan.stages, self._values, self._norms, self._bias_needed, strict=True
        ):
            if plan.order is not None and values is not None:
                values = torch.empty_like(values).index_copy_(0, plan.order, values)
            before_norm = self._gradient_buffers[buffers.before_norm]
            grads += (values, before_norm.sum((0, 2, 3)) if bias_needed else None, *norm, None)  # type: ignore[union-attr]
        return grads
