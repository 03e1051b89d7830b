"""Packed layers: ``nn.Linear``, ``nn.Conv1d`` and ``nn.Conv2d`` that keep only their non-zero weights.

A module is packed in place by changing its class, as ``torch.nn.utils.parametrize`` does: names, hooks and references
to the module stay. The parameter called ``weight`` stays the same object too, so the optimizer keeps it; its data
becomes a vector with one value per non-zero, and the buffer ``weight_positions`` has their flat positions. The
attribute ``weight_values`` is that parameter; the attribute ``weight`` reads as the dense weight (dense_weight.py).
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rewire._torch import parameters_of, remove_buffer
from rewire.core.dense_ops import take, where_true, written_out
from rewire.kernels.batch import ops
from rewire.kernels.batch.norm import Moments
from rewire.kernels.geometry import Geometry, Pair
from rewire.kernels.library import native
from rewire.model.state_names import MASK, POSITIONS
from rewire.nn.backward_record import BackwardRecord
from rewire.nn.coverage import extra_padding_of, geometry_of, has_own_forward, torch_base
from rewire.nn.dense_weight import DenseWeight

NO_RELU = -1.0  # as a ``relu_limit``: no ReLU is applied. The limit of nn.ReLU is infinity, that of nn.ReLU6 is 6.


class Packed(nn.Module):
    """Base of the packed layers: values in ``weight_values``, their flat positions in ``weight_positions``."""

    torch_class: ClassVar[type[nn.Module]]  # what the layer was before it was packed
    calls_own_forward: ClassVar[bool] = False  # a subclass of a torch layer with a forward of its own
    weight_positions: Tensor
    dense_shape: torch.Size
    geometry: Geometry
    extra_padding: Pair  # rows below and columns to the right that are padded before the kernel runs
    layer_name: str = "a packed layer"  # in the model, for messages
    dense_read_warned: bool = False
    backward_record: BackwardRecord | None  # set at steps whose gradients a rewiring will rank
    relu_limit: float = NO_RELU  # upper bound of a ReLU that ``rewire.pack`` fused into the layer; negative: none

    @property
    def weight_values(self) -> nn.Parameter:
        """The parameter ``weight``: one value for each non-zero."""
        return parameters_of(self)["weight"]  # type: ignore[return-value]

    @property
    def weight(self) -> Tensor:
        """The dense weight, read-only, as code outside of this layer expects it."""
        return DenseWeight.of(self)

    def to_images(self, x: Tensor) -> Tensor:
        """The input of the layer as the (N, C, H, W) tensor that the kernel reads."""
        raise NotImplementedError

    def from_images(self, y: Tensor, x: Tensor) -> Tensor:
        """The output of the kernel in the shape that the layer returns for the input ``x``."""
        raise NotImplementedError

    def apply_weight(
        self,
        x: Tensor,
        values: Tensor,
        bias: Tensor | None,
        relu_limit: float = NO_RELU,
        moments: Moments | None = None,
    ) -> Tensor:
        """The output of the layer for the given values and bias; and keep what a rewiring needs of this step.

        ``relu_limit``: upper bound of a ReLU that is applied as well; negative: none. ``moments``: two vectors to fill
        with mean and variance of every output channel, for a batch norm that follows.
        """
        images = self.to_images(x)
        if torch.is_autocast_enabled(images.device.type):  # the kernels compute in the precision of the weights
            images = images.to(values.dtype)
        if self.extra_padding != (0, 0):
            images = F.pad(images, (0, self.extra_padding[1], 0, self.extra_padding[0]))
        y = ops.sparse_conv2d(images, values, self.weight_positions, bias, self.geometry, relu_limit, moments)
        if self.backward_record is not None:
            # `y`, not the view of it that is returned: a hook on a view is lost when the view is changed in place
            self.backward_record.record(images, y)
        return self.from_images(y, x)

    def forward_fused(self, x: Tensor, relu_limit: float, moments: Moments | None = None) -> Tensor:
        """The output of the layer and of the ReLU that follows; see ``apply_weight``."""
        return self.apply_weight(x, self.weight_values, self.bias, relu_limit, moments)  # type: ignore[arg-type]

    def forward(self, input: Tensor) -> Tensor:
        """What the torch layer with zeros at the inactive positions computes."""
        return self.forward_fused(input, self.relu_limit)

    def record_dense_gradient(self, grad: Tensor) -> None:
        """Keep the gradient of the dense weight that other code read, if the next rewiring ranks gradients."""
        if self.backward_record is not None:
            self.backward_record.record_dense(grad)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a class that was made for a subclass by the name of that subclass."""
        reduced = super().__reduce_ex__(protocol)
        if type(self) in PACKED_MODULES.values():
            return reduced
        return _new_packed, (self.torch_class,), *reduced[2:]

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
        if values is not None and loaded is None and values.shape == self.dense_shape:  # of a dense model
            state_dict[prefix + "weight"] = values = take(values, self.weight_positions.long())
        if values is not None and loaded is not None and len(values) != len(self.weight_values):
            resize(self.weight_values, torch.empty(len(values), dtype=self.weight_values.dtype))
        if loaded is not None and len(loaded) != len(self.weight_positions):
            self.weight_positions = torch.empty_like(loaded, dtype=position_dtype(self.geometry))
        super()._load_from_state_dict(state_dict, prefix, *args)


class PackedLinear(Packed, nn.Linear):  # type: ignore[override]
    """``nn.Linear`` that keeps only its non-zero weights: a 1x1 convolution of images of one pixel."""

    torch_class = nn.Linear

    def to_images(self, x: Tensor) -> Tensor:
        """From (..., in_features)."""
        if x.shape[-1] != self.in_features:
            raise ValueError(f"the layer has {self.in_features} inputs and was given {tuple(x.shape)}")
        return x.reshape(-1, self.in_features, 1, 1)

    def from_images(self, y: Tensor, x: Tensor) -> Tensor:
        """To (..., out_features)."""
        return y.reshape(*x.shape[:-1], self.out_features)


class PackedConv2d(Packed, nn.Conv2d):  # type: ignore[override]
    """``nn.Conv2d`` that keeps only its non-zero weights. The output of a batch is in HWCN layout."""

    torch_class = nn.Conv2d

    def to_images(self, x: Tensor) -> Tensor:
        """From (N, C, H, W) or (C, H, W)."""
        return x if x.dim() == 4 else x[None]

    def from_images(self, y: Tensor, x: Tensor) -> Tensor:
        """To the number of dimensions of ``x``."""
        return y if x.dim() == 4 else y[0]


class PackedConv1d(Packed, nn.Conv1d):  # type: ignore[override]
    """``nn.Conv1d`` that keeps only its non-zero weights: a convolution of images of height one."""

    torch_class = nn.Conv1d

    def to_images(self, x: Tensor) -> Tensor:
        """From (N, C, L) or (C, L)."""
        return x[:, :, None] if x.dim() == 3 else x[None, :, None]

    def from_images(self, y: Tensor, x: Tensor) -> Tensor:
        """To the number of dimensions of ``x``."""
        return y[:, :, 0] if x.dim() == 3 else y[0, :, 0]


PACKED_MODULES: dict[type[nn.Module], type[Packed]] = {
    nn.Linear: PackedLinear,
    nn.Conv1d: PackedConv1d,
    nn.Conv2d: PackedConv2d,
}


_PACKED_SUBCLASSES: dict[type[nn.Module], type[Packed]] = {}


def packed_class(torch_class: type[nn.Module]) -> type[Packed]:
    """The packed form of a layer's class; for a subclass, a class that keeps its methods and its own forward.

    >>> class Renamed(nn.Linear):
    ...     pass
    >>> [kind.__name__ for kind in packed_class(Renamed).__mro__[:4]]
    ['PackedRenamed', 'PackedLinear', 'Packed', 'Renamed']
    """
    if torch_class in PACKED_MODULES:
        return PACKED_MODULES[torch_class]
    if torch_class not in _PACKED_SUBCLASSES:
        attributes: dict[str, Any] = {"torch_class": torch_class, "__module__": __name__}
        if has_own_forward(torch_class):
            attributes |= {"forward": torch_class.forward, "calls_own_forward": True}
        bases = (PACKED_MODULES[torch_base(torch_class)], torch_class)
        _PACKED_SUBCLASSES[torch_class] = type(f"Packed{torch_class.__name__}", bases, attributes)
    return _PACKED_SUBCLASSES[torch_class]


def kernel_class(module: nn.Module) -> type[nn.Module]:
    """The class that tells what a module computes: that of the packed torch layer where a subclass changes nothing."""
    if isinstance(module, Packed) and not module.calls_own_forward:
        return PACKED_MODULES[torch_base(module.torch_class)]
    return type(module)


def _new_packed(torch_class: type[nn.Module]) -> Packed:
    kind = packed_class(torch_class)
    return kind.__new__(kind)


def pack_module(module: nn.Module, positions: Tensor, values: Tensor, name: str = "") -> Packed:
    """In place: keep only ``values`` at the sorted flat ``positions`` of a layer's weight.

    The weight may be on the meta device; it then moves to the device of the values. ``name``: of the layer in its
    model, for messages.

    >>> layer = nn.Linear(3, 2, bias=False)
    >>> pack_module(layer, torch.tensor([0, 5]), torch.tensor([2.0, 3.0]))(torch.ones(1, 3)).tolist()
    [[2.0, 3.0]]
    """
    weight = weight_parameter(module)
    shape = weight.shape
    if weight.is_meta:  # data cannot move between devices, so the content of the parameter object is exchanged
        torch.utils.swap_tensors(weight, nn.Parameter(values))
    else:
        resize(weight, values)
    return _become_packed(module, shape, positions, name)


def pack_shared(modules: Sequence[nn.Module], positions: Tensor, values: Tensor) -> None:
    """In place: pack layers that share one weight; they go on sharing values and positions."""
    first, *others = modules
    shape = weight_parameter(first).shape
    packed = pack_module(first, positions, values)
    for module in others:
        _become_packed(module, shape, packed.weight_positions)


def _become_packed(module: nn.Module, shape: torch.Size, positions: Tensor, name: str = "") -> Packed:
    """Change the class of a layer whose weight has been resized to its non-zero values."""
    geometry, extra_padding = geometry_of(module, shape), extra_padding_of(module)
    module.__class__ = packed_class(type(module))
    assert isinstance(module, Packed)
    native()  # load the library now: torch.compile cannot trace the code that loads it
    module.dense_shape, module.geometry, module.extra_padding = shape, geometry, extra_padding
    module.backward_record = None
    module.layer_name = name or f"this {module.torch_class.__name__}"
    module.register_buffer(POSITIONS, positions.to(position_dtype(geometry)))
    return module


def weight_parameter(layer: nn.Module) -> nn.Parameter:
    """The parameter called ``weight``, dense or packed."""
    weight = parameters_of(layer)["weight"]
    assert weight is not None
    return weight


def position_dtype(geometry: Geometry) -> torch.dtype:
    """32-bit integers unless the dense weight has 2^31 elements or more."""
    return torch.int32 if geometry.numel < 2**31 else torch.int64


@torch.no_grad()
def unpack_module(module: Packed) -> None:
    """In place: make a packed layer the torch module that it was, with zeros at the inactive positions."""
    values = module.weight_values
    if values.shape != module.dense_shape:  # else: shared with a layer that was unpacked before
        resize(values, written_out(values.detach(), module.weight_positions, module.dense_shape))
    for name in ("dense_shape", "geometry", "extra_padding", "backward_record", "layer_name"):
        delattr(module, name)
    module.__dict__.pop("dense_read_warned", None)
    remove_buffer(module, POSITIONS)
    module.__class__ = module.torch_class  # type: ignore[assignment]


def resize(parameter: nn.Parameter, data: Tensor) -> None:
    """Give a parameter data of another shape; it stays the object that the optimizer holds.

    While an old graph is alive (a loss that the user still holds), autograd would go on accumulating into the old
    shape. It forgets that shape only when the dtype changes, so the parameter has another dtype for a moment.
    """
    parameter.grad = None
    other = torch.float64 if data.dtype == torch.float32 else torch.float32
    parameter.data = torch.empty(0, dtype=other)
    parameter.data = data
