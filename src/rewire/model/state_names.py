"""The names under which a layer's topology is found in its module's buffers and in a ``state_dict``.

The mask of a parameter has the parameter's name and ``_mask`` behind it: ``weight_mask``, ``in_proj_weight_mask``.
Models have buffers of their own that end so (an attention mask); a mask of ours is bool, and beside it there is a
tensor of its shape under the name without the ending.
"""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from rewire._torch import buffers_of, parameters_of
from rewire.core.state_names import MASK as MASK
from rewire.core.state_names import MASK_SUFFIX as MASK_SUFFIX
from rewire.core.state_names import POSITIONS as POSITIONS
from rewire.core.state_names import POSITIONS_SUFFIX as POSITIONS_SUFFIX

AnyTensor = TypeVar("AnyTensor", bound=Tensor)


def mask_name(parameter: str) -> str:
    """The name of a parameter's mask.

    >>> mask_name("encoder.in_proj_weight")
    'encoder.in_proj_weight_mask'
    """
    return parameter + MASK_SUFFIX


def positions_name(parameter: str) -> str:
    """The name of the positions of a packed parameter.

    >>> positions_name("encoder.in_proj_weight")
    'encoder.in_proj_weight_positions'
    """
    return parameter + POSITIONS_SUFFIX


def packed_in(state: Mapping[str, Tensor]) -> list[str]:
    """The names of the packed weights of a ``state_dict``: vectors with a vector of as many integer positions.

    >>> packed_in({"a.weight": torch.ones(2), "a.weight_positions": torch.tensor([3, 7]), "n_positions": torch.ones(2)})
    ['a.weight']
    """
    return [name for name, values in state.items() if _has_positions(values, state.get(positions_name(name)))]


def _has_positions(values: Tensor, positions: Tensor | None) -> bool:
    if positions is None or positions.dtype not in (torch.int32, torch.int64):
        return False
    return positions.dim() == 1 and positions.shape == values.shape


def is_packed(module: nn.Module) -> bool:
    """Whether a weight of a module is packed."""
    parameters, buffers = parameters_of(module), buffers_of(module)
    tensors = {name: tensor for name, tensor in (parameters | buffers).items() if tensor is not None}
    return POSITIONS in buffers or bool(packed_in(tensors))


def masks_in(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The masks of a ``state_dict``, by the names of their weights.

    >>> state = {"a.weight": torch.ones(2), "a.weight_mask": torch.tensor([True, False]), "attn_mask": torch.ones(2)}
    >>> masks_in(state)
    {'a.weight': tensor([ True, False])}
    """
    return {name: mask for name in state if (mask := _mask_beside(state, name)) is not None}


def masks_of(module: nn.Module) -> dict[str, Tensor]:
    """The masks of a module's own parameters, by the names of the parameters."""
    parameters, buffers = parameters_of(module), buffers_of(module)
    tensors = {name: tensor for name, tensor in (parameters | buffers).items() if tensor is not None}
    return {name: mask for name, mask in masks_in(tensors).items() if name in parameters}


def is_sparse(module: nn.Module) -> bool:
    """Whether a module has a masked weight, or a packed one."""
    return is_packed(module) or bool(masks_of(module))


def holds_topology(state: Mapping[str, Tensor]) -> bool:
    """Whether a ``state_dict`` is that of a sparse model."""
    return bool(topology_names(state))


def topology_names(state: Mapping[str, Tensor]) -> set[str]:
    """The names of masks and positions in a ``state_dict``."""
    positions = {name for name in state if name.rpartition(".")[2] == POSITIONS}
    positions |= {positions_name(weight) for weight in packed_in(state)}
    return {mask_name(weight) for weight in masks_in(state)} | positions


def without_masks(state: Mapping[str, AnyTensor]) -> dict[str, AnyTensor]:
    """A ``state_dict`` as a dense model has it."""
    masks = {mask_name(weight) for weight in masks_in(state)}
    return {name: tensor for name, tensor in state.items() if name not in masks}


def _mask_beside(state: Mapping[str, Tensor], weight: str) -> Tensor | None:
    mask = state.get(mask_name(weight))
    ours = mask is not None and mask.dtype == torch.bool and mask.shape == state[weight].shape
    return mask if ours else None
