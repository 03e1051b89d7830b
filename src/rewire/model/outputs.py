"""How far the outputs of two networks are apart: tensors, or tuples and dictionaries of them."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


def relative_difference(expected: Any, outputs: Any) -> float:
    """The largest difference of all output tensors, each relative to its largest expected magnitude."""
    pairs = zip(tree_leaves(expected), tree_leaves(outputs), strict=True)
    return max((_of_tensors(a, b) for a, b in pairs if isinstance(a, Tensor)), default=0.0)


def _of_tensors(expected: Tensor, output: Tensor) -> float:
    if expected.shape != output.shape or expected.dtype != output.dtype:
        raise ValueError(
            f"its output is {tuple(output.shape)} {output.dtype} instead of {tuple(expected.shape)} {expected.dtype}"
        )
    if not expected.numel():
        return 0.0
    wide = torch.complex128 if expected.is_complex() else torch.float64
    same = (expected == output) | (expected.isnan() & output.isnan())
    apart = torch.where(same, 0.0, (expected.to(wide) - output.to(wide)).abs())
    scale = max(float(expected.to(wide).abs().nan_to_num(0, 0, 0).max()), 1e-3)
    largest = float(apart.max())
    return largest / scale if largest == largest else float("inf")
