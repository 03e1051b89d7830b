"""Packed layers: which class a torch layer gets, packing in place and back.

packed_base.py has what they share, packed_linear.py the linear layers.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rewire._torch import remove_buffer
from rewire.core.dense_ops import written_out
from rewire.kernels.library import native
from rewire.model.state_names import positions_name
from rewire.nn.coverage import extra_padding_of, geometry_of, has_own_forward, has_torch_base, torch_base
from rewire.nn.packed_attention import PackedAttention
from rewire.nn.packed_base import NO_RELU, Packed, position_dtype, resize, weight_parameter
from rewire.nn.packed_linear import PackedInputsFirst, PackedLinear

__all__ = [
    "NO_RELU",
    "PACKED_MODULES",
    "Packed",
    "PackedAttention",
    "PackedConv1d",
    "PackedConv2d",
    "PackedInputsFirst",
    "PackedLinear",
    "kernel_class",
    "pack_module",
    "pack_shared",
    "packed_class",
    "position_dtype",
    "resize",
    "unpack_module",
    "weight_parameter",
]


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
    nn.MultiheadAttention: PackedAttention,
}


_PACKED_SUBCLASSES: dict[type[nn.Module], type[Packed]] = {}


def packed_class(torch_class: type[nn.Module]) -> type[Packed]:
    """The packed form of a layer's class; for a subclass, a class that keeps its methods and its own forward.

    >>> class Renamed(nn.Linear):
    ...     pass
    >>> [kind.__name__ for kind in packed_class(Renamed).__mro__[:5]]
    ['PackedRenamed', 'PackedLinear', 'TokenLinear', 'Packed', 'Renamed']
    """
    if torch_class in PACKED_MODULES:
        return PACKED_MODULES[torch_class]
    if torch_class not in _PACKED_SUBCLASSES:
        attributes: dict[str, Any] = {"torch_class": torch_class, "__module__": __name__}
        attributes["__reduce_ex__"] = _reduce_by_torch_class
        if has_torch_base(torch_class) and has_own_forward(torch_class):
            attributes |= {"forward": torch_class.forward, "runs_users_forward": True}
        bases = (_packed_base(torch_class), torch_class)
        _PACKED_SUBCLASSES[torch_class] = type(f"Packed{torch_class.__name__}", bases, attributes)
    return _PACKED_SUBCLASSES[torch_class]


def kernel_class(module: nn.Module) -> type[nn.Module]:
    """The class that tells what a module computes: that of the packed torch layer where a subclass changes nothing."""
    if isinstance(module, Packed) and not module.runs_users_forward:
        return _packed_base(module.torch_class)
    return type(module)


def _packed_base(torch_class: type[nn.Module]) -> type[Packed]:
    """The packed form of the torch layer that a class derives from; any other class is a ``Conv1D``."""
    return PACKED_MODULES[torch_base(torch_class)] if has_torch_base(torch_class) else PackedInputsFirst


def _reduce_by_torch_class(module: Packed, protocol: Any) -> Any:
    """Pickle a class that was made for a subclass by the name of that subclass."""
    reduced = super(Packed, module).__reduce_ex__(protocol)
    return _new_packed, (module.torch_class,), *reduced[2:]


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
    module.register_buffer(positions_name(module.weight_name), positions.to(position_dtype(geometry)))
    return module


@torch.no_grad()
def unpack_module(module: Packed) -> None:
    """In place: make a packed layer the torch module that it was, with zeros at the inactive positions."""
    values = module.weight_values
    if values.shape != module.dense_shape:  # else: shared with a layer that was unpacked before
        resize(values, written_out(values.detach(), module.weight_positions, module.dense_shape))
    for name in ("dense_shape", "geometry", "extra_padding", "backward_record", "layer_name"):
        delattr(module, name)
    module.__dict__.pop("dense_read_warned", None)
    remove_buffer(module, positions_name(module.weight_name))
    module.__class__ = module.torch_class  # type: ignore[assignment]
