"""Conversions between the ways to store a network: dense with zeros, dense with masks, packed."""

import copy
from collections import Counter
from collections.abc import Collection

import torch
from torch import Tensor, nn

from rewire._torch import parameters_of
from rewire.core.dense_ops import mask_of, take, where_true
from rewire.model.select import unwrap
from rewire.model.state_names import mask_name, masks_of
from rewire.nn.coverage import no_kernel_reason, packable_weight
from rewire.nn.packed import Packed, pack_module, unpack_module
from rewire.nn.replace import restore_torch_module, use_hwcn_module
from rewire.stores.copies import unlink, unlinked
from rewire.stores.masked import release


@torch.no_grad()
def to_dense(model: nn.Module) -> nn.Module:
    """A copy of a masked or packed model made of ordinary torch modules, with zeros in place. The model stays as it is.

    >>> import rewire
    >>> model = nn.Linear(4, 5)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.5), store="packed")
    >>> model.weight_values.shape, to_dense(model).weight.shape
    (torch.Size([10]), torch.Size([5, 4]))
    """
    plain = copied(unwrap(model))
    unpack(plain)
    for module in plain.modules():
        release(module)
    return plain


def to_masked(model: nn.Module) -> nn.Module:
    """The model with masks beside dense weights: itself, unless something in it is packed; then a copy."""
    model = unwrap(model)
    if not any(isinstance(module, Packed) for module in model.modules()):
        return model
    masked = unlinked(copied(model))
    unpack(masked)
    return masked


def to_packed(model: nn.Module) -> nn.Module:
    """A copy whose masked layers hold their values and positions alone, where a kernel covers them."""
    packed = unlinked(copied(unwrap(model)))
    pack_masked(packed)
    return packed


def copied(model: nn.Module) -> nn.Module:
    """A deep copy; a sentence if modules remember tensors of their last forward pass, which torch does not copy."""
    with_history = [
        f"{path}.{name}"
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor) and not value.is_leaf
    ]
    if with_history:
        raise ValueError(
            f"the model cannot be copied, because {', '.join(with_history)} belongs to the graph of its last forward "
            "pass: detach it, or run the model once under torch.no_grad()"
        )
    return copy.deepcopy(model)


@torch.no_grad()
def unpack(model: nn.Module) -> None:
    """In place: packed layers become dense ones with a mask, and batch norm and pooling torch's own."""
    for module in model.modules():
        if isinstance(module, Packed):
            if module.relu_limit >= 0:
                raise ValueError(
                    f"this {type(model).__name__} was packed for inference, its batch norm and ReLU are part of its "
                    "layers now: use the model that it was made from"
                )
            weight = module.weight_name
            mask = mask_in(module, weight)
            unlink(module)
            unpack_module(module)
            module.register_buffer(mask_name(weight), mask)
        else:
            restore_torch_module(module)


@torch.no_grad()
def pack_masked(model: nn.Module, only: Collection[nn.Module] | None = None) -> None:
    """In place, the other way round; a layer without a kernel, or whose weight is shared, stays masked.

    ``only``: the modules to pack; without it, all that can be.
    """
    uses = Counter(id(parameter) for module in model.modules() for parameter in parameters_of(module).values())
    for name, module in model.named_modules():
        attribute = packable_weight(module)
        weight, mask = parameters_of(module).get(attribute), masks_of(module).get(attribute)
        if weight is None or mask is None:
            use_hwcn_module(module)
        elif uses[id(weight)] == 1 and not no_kernel_reason(module, weight) and (only is None or module in only):
            release(module)
            active = where_true(mask)
            pack_module(module, active, take(weight.detach(), active), name)


def mask_in(module: nn.Module, parameter: str) -> Tensor | None:
    """Which weights of a masked or packed layer exist; ``None`` if it is dense."""
    if not isinstance(module, Packed) or parameter != module.weight_name:
        return masks_of(module).get(parameter)
    return mask_of(module.weight_positions, module.dense_shape)
