"""Checks of a file that was just written: the same tensors, and a network that computes the same outputs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from rewire.model.modes import evaluating
from rewire.model.outputs import relative_difference
from rewire.model.state_names import masks_in, without_masks
from rewire.stores.convert import to_dense


def state_on_cpu(masked: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict``, every tensor copied to the CPU. Raises if a weight is not zero where its mask is off."""
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in masked.state_dict().items()}
    for name, mask in masks_in(state).items():
        refuse_values_outside(name, state[name], mask)
    return state


def refuse_values_outside(name: str, weight: Tensor, mask: Tensor) -> None:
    """Raise if a weight is not zero where its mask is off: a file without these values would be of another network."""
    if bool((weight.ne(0) & ~mask).any()):
        raise ValueError(f"{name} has values where its mask says that there is no weight: set them to zero first")


def compare_tensors(written: Mapping[str, Tensor], read: Mapping[str, Tensor]) -> None:
    """Raise unless both have the same names, dtypes, shapes and values (NaN equals NaN)."""
    for name in written.keys() | read.keys():
        if name not in written or name not in read or not _identical(written[name], read[name]):
            raise ValueError(f"what was read back differs from what was written, in {name}")


def _identical(first: Tensor, second: Tensor) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return bool(((first == second) | ((first != first) & (second != second))).all())


@torch.no_grad()
def compare_networks(masked: nn.Module, state: Mapping[str, Tensor], example: Tensor | None) -> None:
    """Compare the outputs of a network with those of a dense copy that was given ``state``, in evaluation mode."""
    if example is None:
        return
    dense = to_dense(masked).eval()
    for tensor in dense.state_dict().values():
        tensor.zero_()
    dense.load_state_dict(without_masks(state))
    x = example.to(next(dense.parameters()).device)
    with evaluating(masked):
        compare_outputs(masked(x), dense(x))


def compare_outputs(expected: Any, output: Any, tolerance: float = 1e-5, name: str = "what was read back") -> None:
    """Raise if a tensor of two outputs differs by more than ``tolerance``, relative to its largest expected magnitude.

    Outputs may be tuples, dictionaries and whatever else torch's pytrees know. An empty tensor has no difference.
    """
    if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(expected)):
        raise ValueError(f"the network returns no tensor to compare, but {type(expected)}: write it without example")
    try:
        difference = relative_difference(expected, output)
    except ValueError as error:
        raise ValueError(f"{name} computes something else: {error}") from error
    if not difference <= tolerance:
        raise ValueError(f"{name} computes something else: {difference:.1e} apart, relative")
