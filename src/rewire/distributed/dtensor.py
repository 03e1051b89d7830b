"""Tensors that are spread over ranks: what this process holds of them. A plain tensor is held whole.

``fully_shard`` splits parameters by rows, so a rank holds a range of flat positions; the last ranks may hold none.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def is_sharded(tensor: object) -> bool:
    """Whether it is a DTensor; the module that defines them need not be imported to know."""
    return hasattr(tensor, "_local_tensor")


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that is in this process: all of it, or a shard. Shares its memory."""
    held: Tensor = getattr(tensor, "_local_tensor", tensor)
    return held


def whole(tensor: Any) -> Tensor:
    """All of a tensor. If it is spread over ranks, all of them must ask."""
    full: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return full


def span(tensor: Tensor, name: str) -> range:
    """The flat positions that this process holds; a sentence about every layout other than rows over ranks."""
    if not is_sharded(tensor):
        return range(tensor.numel())
    mesh, dim = sharded_by_rows(tensor, name)
    rows, row = tensor.shape[0], tensor.shape[1:].numel()
    each = -(-rows // mesh.size(dim))
    first, last = (min(rank * each, rows) for rank in (mesh.get_local_rank(dim), mesh.get_local_rank(dim) + 1))
    held = local(tensor)
    if held.shape != (last - first, *tensor.shape[1:]):
        raise ValueError(
            f"{name}: this rank should hold rows {first} to {last} of {tuple(tensor.shape)}, but its shard is "
            f"{tuple(held.shape)}; only the layout of fully_shard is known"
        )
    return range(first * row, last * row)


def sharded_by_rows(tensor: Any, name: str) -> "tuple[DeviceMesh, int]":
    """The mesh of a DTensor and the dimension of it over which the rows are spread; over the others it is copied."""
    dims = [dim for dim, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    if len(dims) != 1 or not tensor.placements[dims[0]].is_shard(0):
        raise ValueError(
            f"{name} is laid out as {tensor.placements}: the masked store knows weights that fully_shard splits by "
            "rows, Shard(0), over one dimension of the mesh (and copies over another); no tensor parallelism"
        )
    return tensor.device_mesh, dims[0]


def spread_like(held: Tensor, tensor: Any) -> Tensor:
    """A tensor of which this process holds ``held``, laid out as ``tensor`` is."""
    if not is_sharded(tensor):
        return held
    from torch.distributed.tensor import DTensor

    stride = torch.empty(tensor.shape, device="meta").stride()
    made: Tensor = DTensor.from_local(
        held, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=stride
    )
    return made


def copy_into(target: Tensor, source: Tensor, held: range) -> None:
    """Copy a whole or an equally spread tensor into one of which this process holds a range of positions."""
    part = local(source) if is_sharded(source) else source.reshape(-1)[held.start : held.stop]
    local(target).copy_(part.reshape(local(target).shape))
