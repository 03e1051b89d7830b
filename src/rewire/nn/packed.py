"""Layers that hold only the weights that exist.

A module is changed by changing its class, as ``torch.nn.utils.parametrize`` does: names, hooks and references stay.
The parameter called ``weight`` stays the same object too; its data becomes one value for each non-zero.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rewire.core.dense_ops import take, where_true
from rewire.kernels.batch import ops
from rewire.kernels.batch.norm import Moments
from rewire.kernels.geometry import Geometry
from rewire.kernels.library import native
from rewire.model.state_names import MASK, POSITIONS


@dataclass
class Tape:
    """Inputs and output gradients of the step that will be ranked: all that a dense gradient is made of.

    An output's gradient counts when the gradient of the weight to which it leads is accumulated. Activation
    checkpointing runs a layer twice for one use, and ``torch.autograd.grad`` accumulates nothing.
    """

    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # what the gradient of the weight is made of
    arrived: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)  # by backward pass, not accumulated yet

    def record(self, x: Tensor, y: Tensor) -> None:
        """Remember the input now and the output's gradient when it comes."""
        if y.requires_grad:
            inside = x.detach()
            y.register_hook(lambda grad: self.arrived.append((_backward_pass(), inside, grad.detach())))

    def accumulated(self, is_first: bool) -> None:
        """The gradient of the weight was accumulated; ``is_first``: what it was before has been cleared."""
        if is_first:
            self.pairs.clear()
        now = _backward_pass()
        self.pairs += [(x, grad) for backward_pass, x, grad in self.arrived if backward_pass == now]
        self.arrived.clear()

    def __deepcopy__(self, _memo: object) -> None:
        """A copy of a layer is not ranked."""

    def __reduce__(self) -> Any:
        return type(None), ()


def _backward_pass() -> int:
    """The number of the backward pass that is running: each has its own, also one inside of another."""
    return torch._C._current_graph_task_id()


class Packed(nn.Module):
    """What packed Linear and Conv2d share: values in ``weight``, their flat positions beside it."""

    weight: nn.Parameter
    weight_positions: Tensor
    dense_shape: torch.Size
    geometry: Geometry
    tape: Tape | None
    limit: float = -1.0  # of the ReLU that the layer applies as well, in a model packed for inference; below zero: none

    def run(self, x: Tensor, limit: float, moments: Moments | None = None) -> Tensor:
        """The layer, with a ReLU if ``limit`` says so; ``moments`` are filled for a batch norm that follows."""
        raise NotImplementedError

    def precise(self, x: Tensor) -> Tensor:
        """Under autocast a layer before this one may give half precision: the kernels go on in that of the weights."""
        return x.to(self.weight.dtype) if torch.is_autocast_enabled(x.device.type) else x

    def forward(self, input: Tensor) -> Tensor:
        """As ever."""
        return self.run(input, self.limit)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + POSITIONS] = self.weight_positions.long()  # whatever they take in memory

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take another number of weights, or a masked checkpoint: what is loaded decides the topology."""
        values, mask = state_dict.get(prefix + "weight"), state_dict.pop(prefix + MASK, None)
        if mask is not None and values is not None:
            positions = where_true(mask)
            state_dict[prefix + POSITIONS] = positions
            state_dict[prefix + "weight"] = values = take(values, positions)
        loaded = state_dict.get(prefix + POSITIONS)
        if values is not None and loaded is None and values.shape == self.dense_shape:  # of a dense model
            state_dict[prefix + "weight"] = values = take(values, self.weight_positions.long())
        if values is not None and loaded is not None and len(values) != len(self.weight):
            resize(self.weight, torch.empty(len(values), dtype=self.weight.dtype))
            self.weight_positions = torch.empty_like(loaded, dtype=position_type(self.geometry))
        super()._load_from_state_dict(state_dict, prefix, *args)


class PackedLinear(Packed, nn.Linear):  # type: ignore[misc]
    """``nn.Linear`` with the weights that exist and no others."""

    def run(self, x: Tensor, limit: float, moments: Moments | None = None) -> Tensor:
        """Whatever the number of leading dimensions."""
        assert moments is None
        if x.shape[-1] != self.in_features:
            raise ValueError(f"the layer has {self.in_features} inputs and was given {tuple(x.shape)}")
        pixels = self.precise(x).reshape(-1, self.in_features, 1, 1)
        y = ops.sparse_conv2d(pixels, self.weight, self.weight_positions, self.bias, self.geometry, limit)
        if self.tape is not None:
            self.tape.record(pixels, y)  # not what is returned: a hook on a view is lost when that changes
        return y.reshape(*x.shape[:-1], self.out_features)


class PackedConv2d(Packed, nn.Conv2d):  # type: ignore[misc]
    """``nn.Conv2d`` with the weights that exist and no others. The output has the batch innermost in memory."""

    def run(self, x: Tensor, limit: float, moments: Moments | None = None) -> Tensor:
        """One image or a batch of them."""
        image = self.precise(x if x.dim() == 4 else x[None])
        y = ops.sparse_conv2d(image, self.weight, self.weight_positions, self.bias, self.geometry, limit, moments)
        if self.tape is not None:
            self.tape.record(image, y)
        return y if x.dim() == 4 else y[0]


PACKED: dict[type[nn.Module], type[Packed]] = {nn.Linear: PackedLinear, nn.Conv2d: PackedConv2d}


def uncovered(module: nn.Module, weight: Tensor) -> str:
    """Why the kernels cannot take a layer, or nothing."""
    if type(module) not in PACKED:
        return f"no kernel for {type(module).__name__}"
    if weight.device.type not in ("cpu", "meta"):
        return f"no kernel for {weight.device.type}"
    if weight.dtype not in (torch.float32, torch.float64):
        return f"no kernel for {weight.dtype}"
    if isinstance(module, nn.Conv2d) and (module.padding_mode != "zeros" or isinstance(module.padding, str)):
        return f"no kernel for padding={module.padding!r}, padding_mode={module.padding_mode!r}"
    return ""


def geometry_of(module: nn.Module, shape: torch.Size) -> Geometry:
    """What a Linear or Conv2d reads and writes."""
    if not isinstance(module, nn.Conv2d):
        return Geometry((shape[0], shape[1], 1, 1))
    stride, padding, dilation = (pair(one) for one in (module.stride, module.padding, module.dilation))
    return Geometry((shape[0], shape[1], shape[2], shape[3]), stride, padding, dilation, module.groups)


def pack_module(module: nn.Module, positions: Tensor, values: Tensor) -> Packed:
    """Turn a Linear or Conv2d into its packed form, in place. The values may be of another device than the weight."""
    weight = module._parameters["weight"]
    assert weight is not None
    shape = weight.shape
    geometry = geometry_of(module, shape)
    if weight.is_meta:  # data cannot move between devices: the parameter's inside is exchanged, the object stays
        torch.utils.swap_tensors(weight, nn.Parameter(values))
    else:
        resize(weight, values)
    module.__class__ = PACKED[type(module)]
    assert isinstance(module, Packed)
    native()  # loaded before torch.compile could come to the line that does
    module.dense_shape, module.geometry, module.tape = shape, geometry, None
    module.register_buffer(POSITIONS, positions.to(position_type(geometry)))
    return module


def position_type(geometry: Geometry) -> torch.dtype:
    """Half the bytes wherever they suffice."""
    return torch.int32 if geometry.numel < 2**31 else torch.int64


def unpack_module(module: Packed, dense: Tensor) -> None:
    """Turn a packed layer back into the torch module that it was, with a dense weight."""
    resize(module.weight, dense)
    del module._buffers[POSITIONS], module.dense_shape, module.geometry, module.tape
    module.__class__ = next(plain for plain, packed in PACKED.items() if type(module) is packed)  # type: ignore[assignment]


def resize(parameter: nn.Parameter, data: Tensor) -> None:
    """Give a parameter data of another shape; it stays the object that the optimizer holds.

    While an old graph is alive (a loss that was not let go of), autograd would go on accumulating into the old shape.
    It forgets that only when the type changes, so the data passes through another type for a moment.
    """
    parameter.grad = None
    other = torch.float64 if data.dtype == torch.float32 else torch.float32
    parameter.data = torch.empty(0, dtype=other)
    parameter.data = data


def pair(value: Any) -> tuple[int, int]:
    """One number for both axes, or one for each."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))
