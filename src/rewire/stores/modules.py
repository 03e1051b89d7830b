"""Layers that hold only the weights that exist, and twins of batch norm and pooling that keep the batch innermost.

A module is changed by changing its class, as ``torch.nn.utils.parametrize`` does: names, hooks and references stay.
The parameter called ``weight`` stays the same object too; its data becomes one value for each non-zero.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rewire.kernels import maps, ops
from rewire.kernels.geometry import Geometry, is_batch_innermost
from rewire.stores.flat import take, where_true

MASK = "weight_mask"
POSITIONS = "weight_positions"


@dataclass
class Tape:
    """Inputs and output gradients of the step that will be ranked: all that a dense gradient is made of."""

    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def record(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        """Remember the input now and the output's gradient when it comes.

        Gradients that were cleared without a step are not part of the next one: what is remembered goes with them.
        """
        if weight.grad is None:
            self.pairs.clear()
        if y.requires_grad:
            inside = x.detach()
            y.register_hook(lambda grad: self.pairs.append((inside, grad.detach())))


class Packed(nn.Module):
    """What packed Linear and Conv2d share: values in ``weight``, their flat positions beside it."""

    weight: nn.Parameter
    weight_positions: Tensor
    dense_shape: torch.Size
    geometry: Geometry
    tape: Tape | None
    relu: bool = False  # whether the layer applies the activation that follows it, in a model packed for inference

    def precise(self, x: Tensor) -> Tensor:
        """Under autocast a layer before this one may give half precision: the kernels go on in that of the weights."""
        return x.to(self.weight.dtype) if torch.is_autocast_enabled(x.device.type) else x

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take another number of weights, or a masked checkpoint: what is loaded decides the topology."""
        values, mask = state_dict.get(prefix + "weight"), state_dict.pop(prefix + MASK, None)
        if mask is not None and values is not None:
            positions = where_true(mask)
            state_dict[prefix + POSITIONS] = positions
            state_dict[prefix + "weight"] = values = take(values, positions)
        loaded = state_dict.get(prefix + POSITIONS)
        if values is not None and loaded is not None and len(values) != len(self.weight):
            resize(self.weight, torch.empty(len(values), dtype=self.weight.dtype))
            self.weight_positions = torch.empty_like(loaded)
        super()._load_from_state_dict(state_dict, prefix, *args)


class PackedLinear(Packed, nn.Linear):  # type: ignore[misc]
    """``nn.Linear`` with the weights that exist and no others."""

    def forward(self, x: Tensor) -> Tensor:
        """As ever, whatever the number of leading dimensions."""
        if x.shape[-1] != self.in_features:
            raise ValueError(f"the layer has {self.in_features} inputs and was given {tuple(x.shape)}")
        x = self.precise(x)
        y = ops.sparse_linear(x, self.weight, self.weight_positions, self.bias, self.out_features, self.relu)
        if self.tape is not None:
            self.tape.record(x, y, self.weight)
        return y


class PackedConv2d(Packed, nn.Conv2d):  # type: ignore[misc]
    """``nn.Conv2d`` with the weights that exist and no others."""

    def forward(self, x: Tensor) -> Tensor:
        """As ever; the output has the batch innermost in memory."""
        image = self.precise(x if x.dim() == 4 else x[None])
        numbers = self.geometry.numbers()
        y: Tensor = ops.sparse_conv2d(image, self.weight, self.weight_positions, self.bias, numbers, self.relu)
        if self.tape is not None:
            self.tape.record(image, y, self.weight)
        return y if x.dim() == 4 else y[0]


class InnermostBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` that keeps the batch innermost; anything unusual goes to torch's own."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, and move the running statistics while training."""
        known = is_batch_innermost(x) and self.affine and ops.is_fast(x, self.weight) and x.numel() > x.shape[1]
        if not known or not (self.training or self.running_mean is None):
            plain: Tensor = self._evaluate(x) if known else super().forward(x)
            return plain
        y: Tensor
        y, mean, variance = maps.batch_norm(x, self.weight, self.bias, self.eps)
        if self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                assert self.num_batches_tracked is not None
                self.num_batches_tracked.add_(1)
                share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
                count = x.numel() / x.shape[1]
                self.running_mean.lerp_(mean, share)
                self.running_var.lerp_(variance * (count / (count - 1)), share)
        return y

    def _evaluate(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return torch.addcmul(shift[:, None, None], x, scale[:, None, None])


class InnermostMaxPool2d(nn.MaxPool2d):
    """``nn.MaxPool2d`` that keeps the batch innermost."""

    def forward(self, x: Tensor) -> Tensor:
        """The largest under each window."""
        plain = not (self.ceil_mode or self.return_indices) and _pair(self.dilation) == (1, 1)
        if plain and is_batch_innermost(x) and ops.is_fast(x):
            y: Tensor = maps.max_pool2d(x, _window(self))
        else:
            y = super().forward(x)
        return y


class InnermostAvgPool2d(nn.AvgPool2d):
    """``nn.AvgPool2d`` that keeps the batch innermost."""

    def forward(self, x: Tensor) -> Tensor:
        """The mean under each window."""
        if not self.ceil_mode and self.divisor_override is None and is_batch_innermost(x) and ops.is_fast(x):
            y: Tensor = maps.avg_pool2d(x, _window(self), self.count_include_pad)
        else:
            y = super().forward(x)
        return y


TWINS: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm2d: InnermostBatchNorm2d,
    nn.MaxPool2d: InnermostMaxPool2d,
    nn.AvgPool2d: InnermostAvgPool2d,
}
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


def pack_module(module: nn.Module, positions: Tensor, values: Tensor) -> Packed:
    """Turn a Linear or Conv2d into its packed form, in place. The values may be of another device than the weight."""
    weight = module._parameters["weight"]
    assert weight is not None
    shape = weight.shape
    if isinstance(module, nn.Conv2d):
        pairs = [_pair(pair) for pair in (module.stride, module.padding, module.dilation)]
        geometry = Geometry((shape[0], shape[1], shape[2], shape[3]), pairs[0], pairs[1], pairs[2], module.groups)
    else:
        geometry = Geometry((shape[0], shape[1], 1, 1))
    if weight.is_meta:  # data cannot move between devices: the parameter's inside is exchanged, the object stays
        torch.utils.swap_tensors(weight, nn.Parameter(values))
    else:
        resize(weight, values)
    module.__class__ = PACKED[type(module)]
    assert isinstance(module, Packed)
    module.dense_shape, module.geometry, module.tape = shape, geometry, None
    module.register_buffer(POSITIONS, positions)
    return module


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


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _window(pool: nn.MaxPool2d | nn.AvgPool2d) -> list[int]:
    return [*_pair(pool.kernel_size), *_pair(pool.stride), *_pair(pool.padding)]
