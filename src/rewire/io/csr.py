"""Weights as values and positions, a row per output: what sparse files and CSR matrices hold."""

import math
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from rewire.model.state_names import mask_name, masks_in, without_masks

VALUES, COLUMNS, ROWS = ".sparse_values", ".sparse_columns", ".sparse_rows"
LARGEST = 2**40  # elements of a dense tensor that a header may ask for: far more than any network has


def compress(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """Masked weights as values, columns and row pointers; all else as it is. And the shapes of these weights."""
    masks, out, shapes = masks_in(state), dict[str, Tensor](), dict[str, list[int]]()
    for name, tensor in without_masks(state).items():
        if name in masks:
            rows, columns, values = by_row(tensor, masks[name])
            out[name + VALUES] = values
            out[name + COLUMNS] = _narrow(columns, tensor[0].numel())
            out[name + ROWS] = _narrow(rows, len(values) + 1)
            shapes[name] = list(tensor.shape)
        else:
            out[name] = tensor
    return out, shapes


def decompress(tensors: Mapping[str, Tensor], shapes: Mapping[str, list[int]]) -> dict[str, Tensor]:
    """Dense weights and their masks from values and positions, each checked before it is used."""
    state = {n: t for n, t in tensors.items() if not n.endswith((VALUES, COLUMNS, ROWS))}
    for name, listed in shapes.items():
        shape = [int(size) for size in listed]
        values, columns, rows = (tensors[name + part] for part in (VALUES, COLUMNS, ROWS))
        at = _positions(name, shape, rows.to(torch.int64), columns.to(torch.int64), values)
        if math.prod(shape) > 4096 * (len(values) + 4096) + sum(t.numel() for t in tensors.values()) * 64:
            raise ValueError(f"{name} asks for {shape} with {len(values)} values: no network is that sparse")
        mask = torch.zeros(math.prod(shape), dtype=torch.bool)
        dense = torch.zeros(math.prod(shape), dtype=values.dtype)
        mask[at], dense[at] = True, values
        state[name], state[mask_name(name)] = dense.view(shape), mask.view(shape)
    return state


def _positions(name: str, shape: list[int], pointers: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """The flat positions, if they are positions of a weight of this shape."""
    sizes = bool(shape) and min(shape) >= 0 and math.prod(shape) <= LARGEST
    if not sizes or values.dim() != 1 or columns.shape != values.shape:
        raise ValueError(f"{name} has shape {shape} and {tuple(values.shape)} values")
    width = math.prod(shape[1:])
    sound = len(pointers) == shape[0] + 1 and int(pointers[0]) == 0 and int(pointers[-1]) == len(values)
    if not sound or bool((pointers.diff() < 0).any()) or bool(((columns < 0) | (columns >= width)).any()):
        raise ValueError(f"{name} has positions outside of its shape {shape}")
    at = torch.repeat_interleave(torch.arange(shape[0]), pointers.diff()) * width + columns
    if bool((at.diff() <= 0).any()):
        raise ValueError(f"{name} names a position twice or out of order")
    return at


def by_row(weight: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row pointers, columns and values, a row per output; ``to_sparse_csr`` would lose active zeros.

    >>> by_row(torch.tensor([[0.0, 5], [7, 8]]), torch.tensor([[True, True], [False, True]]))
    (tensor([0, 2, 3]), tensor([0, 1, 1]), tensor([0., 5., 8.]))
    """
    flat = mask.reshape(len(mask), -1).bool()
    rows = torch.cat([torch.zeros(1, dtype=torch.int64), flat.sum(1).cumsum(0)])
    return rows, flat.nonzero()[:, 1].contiguous(), weight.reshape(flat.shape)[flat]


def csr(rows: Tensor, columns: Tensor, values: Tensor, size: tuple[int, ...]) -> Tensor:
    """A ``torch.sparse_csr`` matrix whose positions were checked."""
    with torch.sparse.check_sparse_tensor_invariants(True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(rows, columns, values, size=size)


def _narrow(index: Tensor, below: int) -> Tensor:
    """16 bits where they are enough, else 32, else 64."""
    kinds = ((2**16, torch.uint16), (2**31, torch.int32))
    return index.to(next((kind for limit, kind in kinds if below <= limit), torch.int64))
