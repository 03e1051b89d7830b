"""Forward and backward pass of sparse layers on batches: native where possible, else the reference implementation."""

import torch
from torch import Tensor

from rewire.kernels import reference
from rewire.kernels.batch.plan import Plan
from rewire.kernels.csr import is_int64
from rewire.kernels.eligibility import runs_native
from rewire.kernels.geometry import Geometry, to_hwcn
from rewire.kernels.library import native
from rewire.kernels.memory import empty_hwcn
from rewire.kernels.plan_cache import cached_plan
from rewire.kernels.threads import thread_count


def forward(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    relu_limit: float = -1.0,
    moments: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The output of a sparse layer, in HWCN layout.

    ``relu_limit``: the upper limit of the ReLU that follows; below zero: no ReLU. ``moments``: two tensors that receive
    the mean and the variance of every output channel.
    """
    batch, _, height, width = x.shape
    out = empty_hwcn(x, batch, geometry.shape[0], *geometry.output(height, width))
    if batch == 0:
        return out
    if not runs_native(x, values):
        y = reference.forward(x, values, positions, bias, geometry)
        return out.copy_(y.clamp_(0, relu_limit) if relu_limit >= 0 else y)
    plan, inputs, values = cached_plan(Plan, geometry, positions, height, width), to_hwcn(x), values.contiguous()
    if plan.order is not None and plan.positions is not None:
        values, positions = values[plan.order], plan.positions
    mean, variance = moments or (None, None)
    shared = (
        positions.data_ptr(), is_int64(positions), inputs.data_ptr(), values.data_ptr(), address(bias),
        out.data_ptr(), address(mean), address(variance), batch, relu_limit >= 0, relu_limit, thread_count(),
    )  # fmt: skip
    if plan.dense[0]:
        native().rewire_conv_dense_forward(plan.shape, plan.forward, plan.forward_csr.tap_offset, *shared)
    else:
        native().rewire_conv_forward(plan.shape, plan.forward_csr, plan.forward, *shared)
    return out


def backward(
    grad: Tensor,
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    geometry: Geometry,
    needed: tuple[bool, bool],
    addend: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of ``x`` and of ``values``; ``None`` where ``needed`` is false.

    ``addend``: another part of the gradient of ``x``, in HWCN layout, which is added to it.
    """
    batch, channels, height, width = x.shape
    if batch == 0:
        return x.new_empty(x.shape) if needed[0] else None, torch.zeros_like(values) if needed[1] else None
    if not runs_native(x, values, grad):
        grad_x, grad_values = reference.backward(grad, x, values, positions, geometry, needed)
        grad_x = grad_x if grad_x is None or addend is None else grad_x + addend
        return None if grad_x is None else empty_hwcn(x, *x.shape).copy_(grad_x), grad_values
    grad_x = empty_hwcn(x, batch, channels, height, width) if needed[0] else None
    grad_values = torch.empty_like(values, memory_format=torch.contiguous_format) if needed[1] else None
    plan, inputs, grads = cached_plan(Plan, geometry, positions, height, width), to_hwcn(x), to_hwcn(grad)
    values = values.contiguous() if plan.order is None else values[plan.order]
    shared = (
        inputs.data_ptr(), grads.data_ptr(), values.data_ptr(), address(addend), address(grad_x), address(grad_values),
        batch, thread_count(),
    )  # fmt: skip
    if plan.dense[1]:
        ordered = positions if plan.positions is None else plan.positions
        native().rewire_conv_dense_backward(
            plan.shape, plan.forward, plan.backward,
            plan.forward_csr.tap_offset, plan.arrays.backward_tap_rank, plan.arrays.backward_tap_offset,
            ordered.data_ptr(), is_int64(ordered), *shared,
        )  # fmt: skip
    else:
        native().rewire_conv_backward(plan.backward, *shared)
    if plan.order is not None and grad_values is not None:
        grad_values = torch.empty_like(grad_values).index_copy_(0, plan.order, grad_values)
    return grad_x, grad_values


def address(tensor: Tensor | None) -> int | None:
    """The address of a tensor's memory; ``None`` becomes a null pointer."""
    return None if tensor is None else tensor.data_ptr()
