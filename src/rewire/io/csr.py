"""Sparse weights as CSR arrays (row pointers, column indices, values), and back to dense weights with masks.

``compress`` and ``decompress`` convert a whole ``state_dict``: they are what a sparse file holds.
"""

import math
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from rewire.model.state_names import mask_name, masks_in, without_masks

VALUES, COLUMNS, ROWS = ".sparse_values", ".sparse_columns", ".sparse_rows"
LARGEST = 2**40  # elements of a dense tensor that a header may ask for: far more than any network has


def compress(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """Each masked weight as values, columns and row pointers, all other tensors unchanged; and the dense shapes."""
    masks, tensors, shapes = masks_in(state), dict[str, Tensor](), dict[str, list[int]]()
    for name, tensor in without_masks(state).items():
        if name in masks:
            row_ptr, col_idx, values = csr_arrays(tensor, masks[name])
            tensors[name + VALUES] = values
            tensors[name + COLUMNS] = _narrowed(col_idx, tensor[0].numel())
            tensors[name + ROWS] = _narrowed(row_ptr, len(values) + 1)
            shapes[name] = list(tensor.shape)
        else:
            tensors[name] = tensor
    return tensors, shapes


def decompress(tensors: Mapping[str, Tensor], shapes: Mapping[str, list[int]]) -> dict[str, Tensor]:
    """Dense weights and their masks from CSR arrays, which are checked before they are used: files can be damaged."""
    state = {n: t for n, t in tensors.items() if not n.endswith((VALUES, COLUMNS, ROWS))}
    for name, sizes in shapes.items():
        shape = [int(size) for size in sizes]
        values, col_idx, row_ptr = (tensors[name + suffix] for suffix in (VALUES, COLUMNS, ROWS))
        positions = _flat_positions(name, shape, row_ptr.to(torch.int64), col_idx.to(torch.int64), values)
        if math.prod(shape) > 4096 * (len(values) + 4096) + sum(t.numel() for t in tensors.values()) * 64:
            raise ValueError(f"{name} asks for {shape} with {len(values)} values: no network is that sparse")
        mask = torch.zeros(math.prod(shape), dtype=torch.bool)
        dense = torch.zeros(math.prod(shape), dtype=values.dtype)
        mask[positions], dense[positions] = True, values
        state[name], state[mask_name(name)] = dense.view(shape), mask.view(shape)
    return state


def _flat_positions(name: str, shape: list[int], row_ptr: Tensor, col_idx: Tensor, values: Tensor) -> Tensor:
    """The flat position of each value; raises unless all are sorted, distinct and inside of the shape."""
    shape_is_sound = bool(shape) and min(shape) >= 0 and math.prod(shape) <= LARGEST
    if not shape_is_sound or values.dim() != 1 or col_idx.shape != values.shape:
        raise ValueError(f"{name} has shape {shape} and {tuple(values.shape)} values")
    width = math.prod(shape[1:])
    ends_are_sound = len(row_ptr) == shape[0] + 1 and int(row_ptr[0]) == 0 and int(row_ptr[-1]) == len(values)
    if not ends_are_sound or bool((row_ptr.diff() < 0).any()) or bool(((col_idx < 0) | (col_idx >= width)).any()):
        raise ValueError(f"{name} has positions outside of its shape {shape}")
    positions = torch.repeat_interleave(torch.arange(shape[0]), row_ptr.diff()) * width + col_idx
    if bool((positions.diff() <= 0).any()):
        raise ValueError(f"{name} names a position twice or out of order")
    return positions


def csr_arrays(weight: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row pointers, column indices and values of a masked weight, with one row per output.

    ``Tensor.to_sparse_csr`` would lose active weights whose value is zero.

    >>> csr_arrays(torch.tensor([[0.0, 5], [7, 8]]), torch.tensor([[True, True], [False, True]]))
    (tensor([0, 2, 3]), tensor([0, 1, 1]), tensor([0., 5., 8.]))
    """
    rows = mask.reshape(len(mask), -1).bool()
    row_ptr = torch.cat([torch.zeros(1, dtype=torch.int64), rows.sum(1).cumsum(0)])
    return row_ptr, rows.nonzero()[:, 1].contiguous(), weight.reshape(rows.shape)[rows]


def csr_tensor(row_ptr: Tensor, col_idx: Tensor, values: Tensor, size: tuple[int, ...]) -> Tensor:
    """A ``torch.sparse_csr`` matrix; raises if the arrays are not valid CSR."""
    with torch.sparse.check_sparse_tensor_invariants(True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(row_ptr, col_idx, values, size=size)


def _narrowed(indices: Tensor, below: int) -> Tensor:
    """Integers below ``below`` in the smallest of 16, 32 and 64 bits that holds them."""
    choices = ((2**16, torch.uint16), (2**31, torch.int32))
    return indices.to(next((dtype for limit, dtype in choices if below <= limit), torch.int64))
