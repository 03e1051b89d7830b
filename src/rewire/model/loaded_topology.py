"""What a checkpoint says of a sparse weight, looked at before it is loaded: refused where it cannot be right.

Sparse checkpoints are changed by code that knows nothing of them: averaged tensor by tensor, filtered by name, taken
from ``named_parameters()``. What comes out may have the right shapes and still belong to other positions.
"""

from typing import Any

import torch
from torch import Tensor

from rewire.model.state_names import MASK_SUFFIX, POSITIONS_SUFFIX, mask_name, positions_name

_HOW_TO_AVERAGE = (
    "Sparse checkpoints cannot be averaged tensor by tensor, as their positions differ: average rewire.to_dense(model) "
    "of each, or let a copy follow the training with rewirer.register_average(copy)"
)


def refuse_impossible(
    state: dict[str, Any], weight: str, shape: torch.Size, own: dict[str, Tensor], errors: list[str]
) -> None:
    """Leave out a topology without its weight; if the topology is impossible, say so and load nothing into the layer.

    ``weight``: its full name; ``shape``: of the dense weight; ``own``: the weight and topology that the layer has now,
    by their full names.
    """
    if weight not in state:  # as after deleting the weight of a head by name
        for name in (mask_name(weight), positions_name(weight)):
            state.pop(name, None)
        return
    if fault := _fault(state, weight, shape):
        errors.append(f"{weight}: {fault}")
        for name in (weight, mask_name(weight), positions_name(weight)):
            state.pop(name, None)
        state |= own


def _fault(state: dict[str, Any], weight: str, shape: torch.Size) -> str | None:
    mask, positions = state.get(mask_name(weight)), state.get(positions_name(weight))
    if mask is not None and mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
        return f"its mask in the checkpoint has values other than 0 and 1. {_HOW_TO_AVERAGE}"
    if positions is not None:
        return _fault_of_positions(positions, state[weight], shape)
    if mask is None and state[weight].dim() == 1 and len(shape) > 1:
        return (
            "the checkpoint has values of a packed weight without their positions, so nothing tells which weights "
            "they are: save model.state_dict(), which has both, instead of the parameters alone"
        )
    return None


def _fault_of_positions(positions: Tensor, values: Tensor, shape: torch.Size) -> str | None:
    if positions.dtype not in (torch.int32, torch.int64):
        return f"its positions in the checkpoint are {positions.dtype}, not integers. {_HOW_TO_AVERAGE}"
    if positions.shape != values.shape or positions.dim() != 1:
        return (
            f"the checkpoint has values of shape {tuple(values.shape)} and positions of shape "
            f"{tuple(positions.shape)}: it needs a vector of values and one position for each"
        )
    if len(positions) and not bool((positions.diff() > 0).all()):
        return f"its positions in the checkpoint are not in ascending order. {_HOW_TO_AVERAGE}"
    if len(positions) and not 0 <= int(positions[0]) <= int(positions[-1]) < shape.numel():
        return (
            f"its positions in the checkpoint go from {int(positions[0])} to {int(positions[-1])}, but the weight has "
            f"the shape {tuple(shape)} here"
        )
    return None


class _ExplainedKey(str):
    """A missing key whose name in torch's message is followed by a sentence."""

    def __format__(self, _spec: str) -> str:
        sentence = (
            "the checkpoint is of a dense model, and this one is sparse: load it before sparsify, or with strict=False "
            "to keep the topology and take the values of the weights that exist"
        )
        return f"{self!s} ({sentence})"


def explain_missing_topology(missing: list[str]) -> None:
    """If a weight was loaded without its topology, say what to do."""
    if any(isinstance(key, _ExplainedKey) for key in missing):
        return
    for index, key in enumerate(missing):
        weight = key.removesuffix(MASK_SUFFIX).removesuffix(POSITIONS_SUFFIX)
        if weight != key and weight not in missing:
            missing[index] = _ExplainedKey(key)
            return
