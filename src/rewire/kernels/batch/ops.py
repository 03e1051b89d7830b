"""Sparse linear and convolution layers with their gradients.

The same code is reached in two ways: by an autograd function where torch runs eagerly, which costs little, and by
operators registered with torch for ``torch.compile`` and ``torch.export``; the names of their arguments are part of the
schema that exported programs refer to.
"""

import math
from typing import Any

import torch
from torch import Tensor

from rewire._torch import differentiable_once
from rewire.kernels.batch.conv import backward, forward
from rewire.kernels.batch.relu import relu_backward
from rewire.kernels.eligibility import is_eager, runs_native
from rewire.kernels.geometry import Geometry, to_hwcn
from rewire.kernels.library import native
from rewire.kernels.memory import empty_hwcn
from rewire.kernels.plan_cache import cached_plan
from rewire.kernels.sample.layer import MAX_INPUT, LayerProgram


def sparse_conv2d(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    relu_limit: float = -1.0,
    moments: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """A convolution with ``values`` at flat ``positions`` of its weight and zeros elsewhere.

    ``relu_limit``: the upper limit of a ReLU that is applied as well (infinity for the plain one); below zero: no ReLU.
    ``moments``: two tensors that receive the mean and the variance of every output channel, for a batch norm behind.
    """
    refuse_mismatch(x, values, positions, geometry)
    if not is_eager(x, values):
        assert moments is None
        y: Tensor = operator(x, values, positions, bias, geometry.numbers(), relu_limit)
        return y
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, values, bias))
    if len(x) == 1 and moments is None and not needs_grad and runs_native(x, values) and x.numel() < MAX_INPUT:
        program = cached_plan(LayerProgram, geometry, positions, *x.shape[2:])
        return program.run(native(), x, values.contiguous(), positions, bias, relu_limit)
    call = _SparseConv2d.apply if needs_grad else forward
    out: Tensor = call(x, values, positions, bias, geometry, relu_limit, moments)
    return out


def refuse_mismatch(x: Tensor, values: Tensor, positions: Tensor, geometry: Geometry) -> None:
    """Raise if tensors do not fit the layer: native code trusts their shapes."""
    if x.dim() != 4 or x.shape[1] != geometry.inputs:
        raise ValueError(f"the layer reads {geometry.inputs} channels of an N, C, H, W input, not {tuple(x.shape)}")
    refuse_unpaired(values, positions)


def refuse_unpaired(values: Tensor, positions: Tensor) -> None:
    """Raise unless every value has its position."""
    if values.dim() != 1 or values.shape != positions.shape:
        raise ValueError(
            f"every value needs its position, but their shapes are {tuple(values.shape)} and {tuple(positions.shape)}"
        )


class _SparseConv2d(torch.autograd.Function):
    """The eager way. The moments, if given, are filled by the forward pass and have no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        values: Tensor,
        positions: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        relu_limit: float,
        moments: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        if runs_native(x, values):
            x = to_hwcn(x).permute(3, 2, 0, 1)  # converted once for both passes
        y = forward(x, values, positions, bias, geometry, relu_limit, moments)
        ctx.geometry, ctx.relu_limit = geometry, relu_limit
        ctx.save_for_backward(x, values, positions, y if relu_limit >= 0 else None)
        return y

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, values, positions, output = ctx.saved_tensors
        grad = grads[0] if output is None else _grad_before_relu(grads[0], output, ctx.relu_limit)
        needed = ctx.needs_input_grad
        both = backward(grad, x, values, positions, ctx.geometry, needed[:2]) if any(needed[:2]) else (None, None)
        return (*both, None, grad.sum((0, 2, 3)) if needed[3] else None, None, None, None)


def _grad_before_relu(grad: Tensor, output: Tensor, relu_limit: float) -> Tensor:
    """The gradient of the input of the ReLU whose output this is."""
    if runs_native(grad, output) and is_eager(grad, output):
        return relu_backward(grad, output, relu_limit)
    grad = torch.ops.aten.threshold_backward(grad, output, 0.0)
    return grad if math.isinf(relu_limit) else grad * (output < relu_limit)


@torch.library.custom_op("rewire::sparse_conv2d", mutates_args=())
def operator(
    x: Tensor, values: Tensor, positions: Tensor, bias: Tensor | None, geometry: list[int], limit: float = -1.0
) -> Tensor:
    """The registered way; the geometry as ``Geometry.numbers()``."""
    return forward(x, values, positions, bias, Geometry.of(geometry), limit)


@torch.library.custom_op("rewire::sparse_conv2d_backward", mutates_args=())
def backward_operator(
    grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, geometry: list[int], wanted: list[bool]
) -> tuple[Tensor, Tensor]:
    """The gradients of ``x`` and of ``values``; an empty tensor for one that is not needed."""
    both = backward(grad, x, values, positions, Geometry.of(geometry), (wanted[0], wanted[1]))
    return tuple(x.new_empty(0) if gradient is None else gradient for gradient in both)  # type: ignore[return-value]


@operator.register_fake
def _(
    x: Tensor, values: Tensor, positions: Tensor, bias: Tensor | None, geometry: list[int], limit: float = -1.0
) -> Tensor:
    shape = Geometry.of(geometry)
    return empty_hwcn(x, x.shape[0], shape.shape[0], *shape.output(x.shape[2], x.shape[3]))


@backward_operator.register_fake
def _(
    grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, geometry: list[int], wanted: list[bool]
) -> tuple[Tensor, Tensor]:
    grad_x = empty_hwcn(x, *x.shape) if wanted[0] else x.new_empty(0)
    return grad_x, torch.empty_like(values) if wanted[1] else values.new_empty(0)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, values, positions, _bias, ctx.geometry, ctx.limit = inputs
    ctx.save_for_backward(x, values, positions, output if ctx.limit >= 0 else None)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, values, positions, output = ctx.saved_tensors
    grad = grad if output is None else _grad_before_relu(grad, output, ctx.limit)
    needed = list(ctx.needs_input_grad[:2])
    grad_x, grad_values = (
        backward_operator(grad, x, values, positions, ctx.geometry, needed) if any(needed) else (None, None)
    )
    grad_bias = grad.sum((0, 2, 3)) if ctx.needs_input_grad[3] else None
    return grad_x if needed[0] else None, grad_values if needed[1] else None, None, grad_bias, None, None


operator.register_autograd(_gradients, setup_context=_save)
