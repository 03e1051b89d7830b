"""Checks of a file that was just written: the same tensors, and a network that computes the same outputs."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rewire.model.modes import evaluating
from rewire.model.state_names import masks_in, without_masks
from rewire.stores.convert import to_dense


def state_on_cpu(masked: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict``, every tensor copied to the CPU. Raises if a weight is not zero where its mask is off."""
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in masked.state_dict().items()}
    for name, mask in masks_in(state).items():
        if bool((state[name].ne(0) & ~mask).any()):
            raise ValueError(f"{name} has values where its mask says that there is no weight: set them to zero first")
    return state


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


def compare_outputs(
    expected: Tensor, output: Tensor, tolerance: float = 1e-5, name: str = "what was read back"
) -> None:
    """Raise if two outputs differ by more than ``tolerance``, relative to the largest expected magnitude."""
    same = (expected == output) | (expected.isnan() & output.isnan())
    largest = max(float(expected.abs().nan_to_num().max()), 1e-3)
    difference = float(torch.where(same, 0.0, (expected - output).abs()).max()) / largest
    if not difference <= tolerance:
        raise ValueError(f"{name} computes something else: {difference:.1e} apart, relative")
