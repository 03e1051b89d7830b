"""Conversions between the ways to store a network: dense with zeros, dense with masks, packed."""

import copy

import torch
from torch import Tensor, nn

from rewire.core.dense_ops import mask_of, take, where_true
from rewire.model.select import unwrap
from rewire.model.state_names import MASK
from rewire.nn.coverage import no_kernel_reason
from rewire.nn.packed import Packed, pack_module, unpack_module
from rewire.nn.replace import restore_torch_module, use_hwcn_module
from rewire.stores.copies import unlink, unlinked_copy
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
    plain = copy.deepcopy(unwrap(model))
    unpack(plain)
    for module in plain.modules():
        release(module)
    return plain


def to_masked(model: nn.Module) -> nn.Module:
    """The model with masks beside dense weights: itself, unless something in it is packed; then a copy."""
    model = unwrap(model)
    if not any(isinstance(module, Packed) for module in model.modules()):
        return model
    masked = unlinked_copy(model)
    unpack(masked)
    return masked


def to_packed(model: nn.Module) -> nn.Module:
    """A copy whose masked layers hold their values and positions alone, where a kernel covers them."""
    packed = unlinked_copy(unwrap(model))
    pack_masked(packed)
    return packed


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
            mask = mask_in(module)
            unlink(module)
            unpack_module(module)
            module.register_buffer(MASK, mask)
        else:
            restore_torch_module(module)


@torch.no_grad()
def pack_masked(model: nn.Module) -> None:
    """In place, the other way round; a layer without a kernel, or whose weight is shared, stays masked."""
    uses = [id(module._parameters.get("weight")) for module in model.modules()]
    for name, module in model.named_modules():
        weight, mask = module._parameters.get("weight"), module._buffers.get(MASK)
        if weight is None or mask is None:
            use_hwcn_module(module)
        elif uses.count(id(weight)) == 1 and not no_kernel_reason(module, weight):
            release(module)
            active = where_true(mask)
            pack_module(module, active, take(weight.detach(), active), name)


def mask_in(module: nn.Module) -> Tensor | None:
    """Which weights of a masked or packed layer exist; ``None`` if it is dense."""
    if not isinstance(module, Packed):
        return module._buffers.get(MASK)
    return mask_of(module.weight_positions, module.dense_shape)
