"""Packed layers: ``nn.Linear`` and ``nn.Conv2d`` that keep only their non-zero weights.

A module is packed in place by changing its class, as ``torch.nn.utils.parametrize`` does: names, hooks and references
to the module stay. The parameter called ``weight`` stays the same object too, so the optimizer keeps it; its data
becomes a vector with one value per non-zero, and the buffer ``weight_positions`` has their flat positions.
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
from rewire.nn.coverage import geometry_of

NO_RELU = -1.0  # as a ``relu_limit``: no ReLU is applied. The limit of nn.ReLU is infinity, that of nn.ReLU6 is 6.


@dataclass
class BackwardRecord:
    """Inputs and output gradients of a layer since the last optimizer step.

    The gradient of the dense weight, which a rewiring ranks at inactive positions, is computed from these pairs.
    """

    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def record(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        """Keep the input ``x`` now and the gradient of the output ``y`` when backward computes it.

        If the weight has no gradient, earlier ones were cleared without a step: their pairs are dropped with them.
        """
        if weight.grad is None:
            self.pairs.clear()
        if y.requires_grad:
            layer_input = x.detach()
            y.register_hook(lambda grad: self.pairs.append((layer_input, grad.detach())))


class Packed(nn.Module):
    """Base of the packed layers: values in ``weight``, their flat positions in ``weight_positions``."""

    weight: nn.Parameter
    weight_positions: Tensor
    dense_shape: torch.Size
    geometry: Geometry
    backward_record: BackwardRecord | None  # set at steps whose gradients a rewiring will rank
    relu_limit: float = NO_RELU  # upper bound of a ReLU that ``rewire.pack`` fused into the layer; negative: none

    def forward_fused(self, x: Tensor, relu_limit: float, moments: Moments | None = None) -> Tensor:
        """The layer and, unless ``relu_limit`` is negative, a ReLU with that upper bound.

        ``moments``: two vectors to fill with mean and variance of every output channel, for a batch norm that follows.
        """
        raise NotImplementedError

    def in_weight_dtype(self, x: Tensor) -> Tensor:
        """Under autocast, inputs may be in half precision: the kernels compute in the precision of the weights."""
        return x.to(self.weight.dtype) if torch.is_autocast_enabled(x.device.type) else x

    def forward(self, input: Tensor) -> Tensor:
        """What the torch layer with zeros at the inactive positions computes."""
        return self.forward_fused(input, self.relu_limit)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + POSITIONS] = self.weight_positions.long()  # checkpoints hold 64-bit positions

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take on the topology of the checkpoint, packed or masked, whatever its number of weights."""
        values, mask = state_dict.get(prefix + "weight"), state_dict.pop(prefix + MASK, None)
        if mask is not None and values is not None:
            positions = where_true(mask)
            state_dict[prefix + POSITIONS] = positions
            state_dict[prefix + "weight"] = values = take(values, positions)
        loaded = state_dict.get(prefix + POSITIONS)
        if values is not None and loaded is not None and len(values) != len(self.weight):
            resize(self.weight, torch.empty(len(values), dtype=self.weight.dtype))
            self.weight_positions = torch.empty_like(loaded, dtype=position_dtype(self.geometry))
        super()._load_from_state_dict(state_dict, prefix, *args)


class PackedLinear(Packed, nn.Linear):  # type: ignore[misc]
    """``nn.Linear`` that keeps only its non-zero weights."""

    def forward_fused(self, x: Tensor, relu_limit: float, moments: Moments | None = None) -> Tensor:
        """From (..., in_features) to (..., out_features)."""
        assert moments is None
        if x.shape[-1] != self.in_features:
            raise ValueError(f"the layer has {self.in_features} inputs and was given {tuple(x.shape)}")
        pixels = self.in_weight_dtype(x).reshape(-1, self.in_features, 1, 1)
        y = ops.sparse_conv2d(pixels, self.weight, self.weight_positions, self.bias, self.geometry, relu_limit)
        if self.backward_record is not None:
            # `y`, not the view of it that is returned: a hook on a view is lost when the view is changed in place
            self.backward_record.record(pixels, y, self.weight)
        return y.reshape(*x.shape[:-1], self.out_features)


class PackedConv2d(Packed, nn.Conv2d):  # type: ignore[misc]
    """``nn.Conv2d`` that keeps only its non-zero weights. The output of a batch is in HWCN layout."""

    def forward_fused(self, x: Tensor, relu_limit: float, moments: Moments | None = None) -> Tensor:
        """From (N, C, H, W) or (C, H, W) to the same number of dimensions."""
        images = self.in_weight_dtype(x if x.dim() == 4 else x[None])
        y = ops.sparse_conv2d(images, self.weight, self.weight_positions, self.bias, self.geometry, relu_limit, moments)
        if self.backward_record is not None:
            self.backward_record.record(images, y, self.weight)
        return y if x.dim() == 4 else y[0]


PACKED_MODULES: dict[type[nn.Module], type[Packed]] = {nn.Linear: PackedLinear, nn.Conv2d: PackedConv2d}


def pack_module(module: nn.Module, positions: Tensor, values: Tensor) -> Packed:
    """In place: keep only ``values`` at the sorted flat ``positions`` of a layer's weight.

    The weight may be on the meta device; it then moves to the device of the values.

    >>> layer = nn.Linear(3, 2, bias=False)
    >>> pack_module(layer, torch.tensor([0, 5]), torch.tensor([2.0, 3.0]))(torch.ones(1, 3))
    tensor([[2., 3.]], grad_fn=<ViewBackward0>)
    """
    weight = module._parameters["weight"]
    assert weight is not None
    shape = weight.shape
    geometry = geometry_of(module, shape)
    if weight.is_meta:  # data cannot move between devices, so the content of the parameter object is exchanged
        torch.utils.swap_tensors(weight, nn.Parameter(values))
    else:
        resize(weight, values)
    module.__class__ = PACKED_MODULES[type(module)]
    assert isinstance(module, Packed)
    native()  # load the library now: torch.compile cannot trace the code that loads it
    module.dense_shape, module.geometry, module.backward_record = shape, geometry, None
    module.register_buffer(POSITIONS, positions.to(position_dtype(geometry)))
    return module


def position_dtype(geometry: Geometry) -> torch.dtype:
    """32-bit integers unless the dense weight has 2^31 elements or more."""
    return torch.int32 if geometry.numel < 2**31 else torch.int64


def unpack_module(module: Packed, dense: Tensor) -> None:
    """In place: make a packed layer the torch module that it was, with the given dense weight."""
    resize(module.weight, dense)
    del module._buffers[POSITIONS], module.dense_shape, module.geometry, module.backward_record
    module.__class__ = next(  # type: ignore[assignment]
        torch_class for torch_class, packed in PACKED_MODULES.items() if type(module) is packed
    )


def resize(parameter: nn.Parameter, data: Tensor) -> None:
    """Give a parameter data of another shape; it stays the object that the optimizer holds.

    While an old graph is alive (a loss that the user still holds), autograd would go on accumulating into the old
    shape. It forgets that shape only when the dtype changes, so the parameter has another dtype for a moment.
    """
    parameter.grad = None
    other = torch.float64 if data.dtype == torch.float32 else torch.float32
    parameter.data = torch.empty(0, dtype=other)
    parameter.data = data
