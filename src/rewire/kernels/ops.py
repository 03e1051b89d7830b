"""The operators, registered with torch: ``torch.compile`` and ``torch.export`` see them, autograd differentiates them.

Each takes the native kernel where there is one (float32 on the CPU) and the reference otherwise.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from rewire.kernels import reference
from rewire.kernels.geometry import Geometry, batch_innermost, empty_map
from rewire.kernels.library import native
from rewire.kernels.plan import Plan, plan

# The tables of each topology: they live as long as its positions do, and are made anew when those are written to.
_PLANS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def plan_for(geometry: Geometry, positions: Tensor, height: int, width: int) -> Plan:
    """The tables of a topology for maps of this size; kept for the next call."""
    version, kept = _PLANS.get(positions, (-1, {}))
    if version != positions._version:
        version, kept = positions._version, {}
        _PLANS[positions] = (version, kept)
    key = (geometry, height, width)
    if key not in kept:
        if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < geometry.numel:
            found = f"{positions.min()} to {positions.max()}"
            raise ValueError(f"positions must lie in [0, {geometry.numel}): these go from {found}")
        kept[key] = plan(geometry, positions.numpy(), height, width)
    return kept[key]  # type: ignore[no-any-return]


def is_fast(*tensors: Tensor) -> bool:
    """Whether the native kernels can take these."""
    return native() is not None and all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)


def refuse_misfit(x: Tensor, values: Tensor, positions: Tensor, geometry: Geometry) -> None:
    """The native kernels trust their tables: what does not fit them must not come so far."""
    if x.dim() != 4 or x.shape[1] != geometry.inputs:
        raise ValueError(f"the layer reads {geometry.inputs} channels of N, C, H, W maps, not {tuple(x.shape)}")
    if values.dim() != 1 or values.shape != positions.shape:
        raise ValueError(f"every value needs its position: {tuple(values.shape)} and {tuple(positions.shape)}")


def pointer(tensor: Tensor | None) -> int | None:
    """Where a tensor's memory begins."""
    return None if tensor is None else tensor.data_ptr()


@torch.library.custom_op("rewire::sparse_conv2d", mutates_args=())
def sparse_conv2d(
    x: Tensor, values: Tensor, positions: Tensor, bias: Tensor | None, geometry: list[int], relu: bool = False
) -> Tensor:
    """A convolution with ``values`` at flat ``positions`` of its weight and zeros elsewhere; ``Geometry.numbers()``."""
    shape = Geometry.of(geometry)
    refuse_misfit(x, values, positions, shape)
    batch, _, height, width = x.shape
    out = empty_map(x, batch, shape.shape[0], *shape.output(height, width))
    if batch == 0:
        return out
    if not is_fast(x, values):
        y = reference.forward(x, values, positions, bias, shape)
        return out.copy_(y.clamp_(min=0) if relu else y)
    tables, inside, values = plan_for(shape, positions, height, width), batch_innermost(x), values.contiguous()
    library = native()
    assert library is not None
    library.rewire_forward(
        ctypes.addressof(tables.forward), pointer(inside), pointer(values), pointer(bias), pointer(out),
        batch, relu, torch.get_num_threads(),
    )  # fmt: skip
    return out


@torch.library.custom_op("rewire::sparse_conv2d_backward", mutates_args=())
def sparse_conv2d_backward(
    grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, geometry: list[int], wanted: list[bool]
) -> tuple[Tensor, Tensor]:
    """The gradients of ``x`` and of ``values``; an empty tensor for one that is not wanted."""
    shape = Geometry.of(geometry)
    batch, channels, height, width = x.shape
    grad_x = empty_map(x, batch, channels, height, width) if wanted[0] else x.new_empty(0)
    grad_values = torch.zeros_like(values) if wanted[1] else values.new_empty(0)
    if batch == 0:
        return grad_x, grad_values
    if not is_fast(x, values, grad):
        found = reference.backward(grad, x, values, positions, shape, (wanted[0], wanted[1]))
        for to, one in zip((grad_x, grad_values), found, strict=True):
            if one is not None:
                to.copy_(one)
        return grad_x, grad_values
    tables, inside, above = plan_for(shape, positions, height, width), batch_innermost(x), batch_innermost(grad)
    values, library = values.contiguous(), native()
    assert library is not None
    library.rewire_backward(
        ctypes.addressof(tables.backward), pointer(inside), pointer(above), pointer(values),
        pointer(grad_x) if wanted[0] else None, pointer(grad_values) if wanted[1] else None,
        batch, torch.get_num_threads(),
    )  # fmt: skip
    return grad_x, grad_values


@sparse_conv2d.register_fake
def _(
    x: Tensor, values: Tensor, positions: Tensor, bias: Tensor | None, geometry: list[int], relu: bool = False
) -> Tensor:
    shape = Geometry.of(geometry)
    return empty_map(x, x.shape[0], shape.shape[0], *shape.output(x.shape[2], x.shape[3]))


@sparse_conv2d_backward.register_fake
def _(
    grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, geometry: list[int], wanted: list[bool]
) -> tuple[Tensor, Tensor]:
    grad_x = empty_map(x, *x.shape) if wanted[0] else x.new_empty(0)
    return grad_x, torch.empty_like(values) if wanted[1] else values.new_empty(0)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, values, positions, _bias, ctx.geometry, ctx.relu = inputs
    ctx.save_for_backward(x, values, positions, output if ctx.relu else None)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, values, positions, output = ctx.saved_tensors
    if ctx.relu:
        grad = torch.ops.aten.threshold_backward(grad, output, 0.0)
    wanted = list(ctx.needs_input_grad[:2])
    grad_x, grad_values = (
        sparse_conv2d_backward(grad, x, values, positions, ctx.geometry, wanted) if any(wanted) else (None, None)
    )
    grad_bias = grad.sum((0, 2, 3)) if ctx.needs_input_grad[3] else None
    return grad_x if wanted[0] else None, grad_values if wanted[1] else None, None, grad_bias, None, None


sparse_conv2d.register_autograd(_gradients, setup_context=_remember)


def sparse_linear(
    x: Tensor, values: Tensor, positions: Tensor, bias: Tensor | None, outputs: int, relu: bool = False
) -> Tensor:
    """A linear layer with ``values`` at flat ``positions``: ``(..., inputs)`` to ``(..., outputs)``."""
    inputs = x.shape[-1]
    geometry = Geometry((outputs, inputs, 1, 1)).numbers()
    pixels = x.reshape(-1, inputs)[:, :, None, None]
    y: Tensor = sparse_conv2d(pixels, values, positions, bias, geometry, relu)
    return y[:, :, 0, 0].reshape(*x.shape[:-1], outputs)
