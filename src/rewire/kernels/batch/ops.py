"""Sparse linear and conv2d with their gradients. Each takes the native kernel where there is one, else the reference.

Two doors to the same code: an autograd function where torch runs eagerly, which costs little, and operators registered
with torch for ``torch.compile`` and ``torch.export``.
"""

import ctypes
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from rewire.kernels import reference
from rewire.kernels.batch import norm
from rewire.kernels.batch.plan import Plan
from rewire.kernels.geometry import Geometry, batch_innermost
from rewire.kernels.library import native
from rewire.kernels.memory import empty_map
from rewire.kernels.sample.layer import MOST, SinglePlan

# The tables of each topology: they live as long as its positions do, and are made anew when those are written to.
_PLANS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def plan_for(geometry: Geometry, positions: Tensor, height: int, width: int) -> Plan:
    """The tables of a topology for maps of this size; kept for the next call."""
    found = _kept(Plan, geometry, positions, height, width)
    assert isinstance(found, Plan)
    return found


def _kept(
    kind: type[Plan] | type[SinglePlan], geometry: Geometry, positions: Tensor, height: int, width: int
) -> Plan | SinglePlan:
    version, kept = _PLANS.get(positions, (-2, {}))
    if version != writes(positions):
        version, kept = writes(positions), {}
        _PLANS[positions] = (version, kept)
    key = (kind, geometry, height, width)
    if key not in kept:
        refuse_outside(geometry, positions)
        library = native()
        assert library is not None
        kept[key] = kind(library, geometry, positions, height, width)
    return kept[key]  # type: ignore[no-any-return]


def refuse_outside(geometry: Geometry, positions: Tensor) -> None:
    """The tables trust the positions."""
    if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < geometry.numel:
        found = f"{positions.min()} to {positions.max()}"
        raise ValueError(f"positions must lie in [0, {geometry.numel}): these go from {found}")


def writes(tensor: Tensor) -> int:
    """How often a tensor was written to; torch does not count that for those made in inference mode."""
    return -1 if tensor.is_inference() else tensor._version


def table_bytes(positions: Tensor) -> int:
    """Memory of the tables that are kept for a topology."""
    _, kept = _PLANS.get(positions, (-2, {}))
    return sum(one.nbytes for one in kept.values())


def is_fast(*tensors: Tensor) -> bool:
    """Whether the native kernels can take these."""
    return native() is not None and all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)


def is_eager(*tensors: Tensor) -> bool:
    """Whether torch runs these at once, with nobody watching: no compilation, no export, no tensors of another kind."""
    watched = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return not watched and all(type(t) in (Tensor, torch.nn.Parameter) for t in tensors)


def refuse_misfit(x: Tensor, values: Tensor, positions: Tensor, geometry: Geometry) -> None:
    """The native kernels trust their tables: what does not fit them must not come so far."""
    if x.dim() != 4 or x.shape[1] != geometry.inputs:
        raise ValueError(f"the layer reads {geometry.inputs} channels of N, C, H, W maps, not {tuple(x.shape)}")
    if values.dim() != 1 or values.shape != positions.shape:
        raise ValueError(f"every value needs its position: {tuple(values.shape)} and {tuple(positions.shape)}")


def pointer(tensor: Tensor | None) -> int | None:
    """Where a tensor's memory begins."""
    return None if tensor is None else tensor.data_ptr()


def forward(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    limit: float = -1.0,
    moments: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The output; ``limit``: of the ReLU that follows, below zero if none does. ``moments``: filled where given."""
    batch, _, height, width = x.shape
    out = empty_map(x, batch, geometry.shape[0], *geometry.output(height, width))
    if batch == 0:
        return out
    if not is_fast(x, values):
        y = reference.forward(x, values, positions, bias, geometry)
        return out.copy_(y.clamp_(0, limit) if limit >= 0 else y)
    tables, inside, values = plan_for(geometry, positions, height, width), batch_innermost(x), values.contiguous()
    if tables.order is not None:
        values, positions = values[tables.order], tables.positions  # type: ignore[assignment]
    mean, variance = moments or (None, None)
    library = native()
    assert library is not None
    rest = (
        positions.data_ptr(), positions.dtype == torch.int64, inside.data_ptr(), values.data_ptr(), pointer(bias),
        out.data_ptr(), pointer(mean), pointer(variance), batch, limit >= 0, limit, torch.get_num_threads(),
    )  # fmt: skip
    layer, gather = ctypes.addressof(tables.layer), ctypes.addressof(tables.forward)
    if tables.dense[0]:
        library.rewire_dense_forward(layer, gather, tables.forward_tables.reach, *rest)
    else:
        library.rewire_forward(layer, ctypes.addressof(tables.forward_tables), gather, *rest)
    return out


def backward(
    grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, geometry: Geometry, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of ``x`` and of ``values``, those that are wanted."""
    batch, channels, height, width = x.shape
    if batch == 0:
        return x.new_empty(x.shape) if wanted[0] else None, torch.zeros_like(values) if wanted[1] else None
    if not is_fast(x, values, grad):
        found = reference.backward(grad, x, values, positions, geometry, wanted)
        grad_x = None if found[0] is None else empty_map(x, *x.shape).copy_(found[0])
        return grad_x, found[1]
    grad_x = empty_map(x, batch, channels, height, width) if wanted[0] else None
    grad_values = torch.empty_like(values, memory_format=torch.contiguous_format) if wanted[1] else None
    tables, inside, above = plan_for(geometry, positions, height, width), batch_innermost(x), batch_innermost(grad)
    values = values.contiguous() if tables.order is None else values[tables.order]
    library = native()
    assert library is not None
    rest = (
        inside.data_ptr(), above.data_ptr(), values.data_ptr(), pointer(grad_x), pointer(grad_values),
        batch, torch.get_num_threads(),
    )  # fmt: skip
    if tables.dense[1]:
        where = positions if tables.positions is None else tables.positions
        library.rewire_dense_backward(
            *(ctypes.addressof(one) for one in (tables.layer, tables.forward, tables.backward)),
            tables.forward_tables.reach, tables.tables.backward_place, tables.tables.backward_reach,
            where.data_ptr(), where.dtype == torch.int64, *rest,
        )  # fmt: skip
    else:
        library.rewire_backward(ctypes.addressof(tables.backward), *rest)
    if tables.order is not None and grad_values is not None:
        grad_values = torch.empty_like(grad_values).index_copy_(0, tables.order, grad_values)
    return grad_x, grad_values


class _Convolution(torch.autograd.Function):
    """The eager door. The moments, where they are given, are filled on the way and have no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        values: Tensor,
        positions: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        limit: float,
        moments: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        if is_fast(x, values):
            x = batch_innermost(x).permute(3, 2, 0, 1)  # once, for both passes
        y = forward(x, values, positions, bias, geometry, limit, moments)
        ctx.geometry, ctx.limit = geometry, limit
        ctx.save_for_backward(x, values, positions, y if limit >= 0 else None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, values, positions, output = ctx.saved_tensors
        grad = grads[0] if output is None else _behind_relu(grads[0], output, ctx.limit)
        wanted = ctx.needs_input_grad
        found = backward(grad, x, values, positions, ctx.geometry, wanted[:2]) if any(wanted[:2]) else (None, None)
        return (*found, None, grad.sum((0, 2, 3)) if wanted[3] else None, None, None, None)


def _behind_relu(grad: Tensor, output: Tensor, limit: float) -> Tensor:
    """The gradient before the ReLU that made the output."""
    if is_fast(grad, output) and is_eager(grad, output):
        return norm.behind_relu(grad, output, limit)
    grad = torch.ops.aten.threshold_backward(grad, output, 0.0)
    return grad if math.isinf(limit) else grad * (output < limit)


def sparse_conv2d(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    limit: float = -1.0,
    moments: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """A convolution with ``values`` at flat ``positions`` of its weight and zeros elsewhere.

    ``limit``: the upper end of a ReLU that is applied as well (infinity for the plain one); below zero: none.
    ``moments``: two tensors that get the mean and the variance of every output channel, for a batch norm behind.
    """
    refuse_misfit(x, values, positions, geometry)
    if not is_eager(x, values):
        assert moments is None
        y: Tensor = operator(x, values, positions, bias, geometry.numbers(), limit)
        return y
    needed = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, values, bias))
    if len(x) == 1 and moments is None and not needed and is_fast(x, values) and x.numel() < MOST:
        return _alone(x, values, positions, bias, geometry, limit)
    call = _Convolution.apply if needed else forward
    out: Tensor = call(x, values, positions, bias, geometry, limit, moments)
    return out


def _alone(
    x: Tensor, values: Tensor, positions: Tensor, bias: Tensor | None, geometry: Geometry, limit: float
) -> Tensor:
    """One sample, with no gradient to follow: planes, not the batch innermost."""
    library, tables = native(), _kept(SinglePlan, geometry, positions, *x.shape[2:])
    assert library is not None
    assert isinstance(tables, SinglePlan)
    return tables.run(library, x, values.contiguous(), positions, bias, limit)


@torch.library.custom_op("rewire::sparse_conv2d", mutates_args=())
def operator(
    x: Tensor, values: Tensor, positions: Tensor, bias: Tensor | None, geometry: list[int], limit: float = -1.0
) -> Tensor:
    """The registered door; the geometry as ``Geometry.numbers()``."""
    return forward(x, values, positions, bias, Geometry.of(geometry), limit)


@torch.library.custom_op("rewire::sparse_conv2d_backward", mutates_args=())
def backward_operator(
    grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, geometry: list[int], wanted: list[bool]
) -> tuple[Tensor, Tensor]:
    """The gradients of ``x`` and of ``values``; an empty tensor for one that is not wanted."""
    found = backward(grad, x, values, positions, Geometry.of(geometry), (wanted[0], wanted[1]))
    return tuple(x.new_empty(0) if one is None else one for one in found)  # type: ignore[return-value]


@operator.register_fake
def _(
    x: Tensor, values: Tensor, positions: Tensor, bias: Tensor | None, geometry: list[int], limit: float = -1.0
) -> Tensor:
    shape = Geometry.of(geometry)
    return empty_map(x, x.shape[0], shape.shape[0], *shape.output(x.shape[2], x.shape[3]))


@backward_operator.register_fake
def _(
    grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, geometry: list[int], wanted: list[bool]
) -> tuple[Tensor, Tensor]:
    grad_x = empty_map(x, *x.shape) if wanted[0] else x.new_empty(0)
    return grad_x, torch.empty_like(values) if wanted[1] else values.new_empty(0)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, values, positions, _bias, ctx.geometry, ctx.limit = inputs
    ctx.save_for_backward(x, values, positions, output if ctx.limit >= 0 else None)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, values, positions, output = ctx.saved_tensors
    grad = grad if output is None else _behind_relu(grad, output, ctx.limit)
    wanted = list(ctx.needs_input_grad[:2])
    grad_x, grad_values = (
        backward_operator(grad, x, values, positions, ctx.geometry, wanted) if any(wanted) else (None, None)
    )
    grad_bias = grad.sum((0, 2, 3)) if ctx.needs_input_grad[3] else None
    return grad_x if wanted[0] else None, grad_values if wanted[1] else None, None, grad_bias, None, None


operator.register_autograd(_gradients, setup_context=_remember)
