"""``to_dense``: a plain torch model with zeros where a sparse one has no weights. The same function."""

import copy

import torch
from torch import nn

from rewire.select import unwrap
from rewire.stores.masked import release
from rewire.stores.modules import MASK, TWINS, Packed, unpack_module


@torch.no_grad()
def to_dense(model: nn.Module) -> nn.Module:
    """A copy of a masked or packed model made of ordinary torch modules, with zeros in place. The model stays as it is.

    >>> import rewire
    >>> model = nn.Linear(4, 5)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.5), store="packed")
    >>> model.weight.shape, to_dense(model).weight.shape
    (torch.Size([10]), torch.Size([5, 4]))
    """
    plain = copy.deepcopy(unwrap(model))
    for module in plain.modules():
        if isinstance(module, Packed):
            dense = module.weight.new_zeros(module.dense_shape.numel())
            dense[module.weight_positions] = module.weight
            unpack_module(module, dense.view(module.dense_shape))
        elif MASK in module._buffers:
            release(module)
        elif type(module) in TWINS.values():
            module.__class__ = next(kind for kind, twin in TWINS.items() if type(module) is twin)
    return plain
