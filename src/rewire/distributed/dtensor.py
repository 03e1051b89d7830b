"""DTensors: the local shard of a tensor, and the flat positions it covers. A plain tensor is its own shard.

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
    shard: Tensor = getattr(tensor, "_local_tensor", tensor)
    return shard


def whole(tensor: Any) -> Tensor:
    """The whole tensor. If it is sharded, a collective: all ranks must call it."""
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
    shard = local(tensor)
    if shard.shape != (last - first, *tensor.shape[1:]):
        raise ValueError(
            f"{name}: this rank should hold rows {first} to {last} of {tuple(tensor.shape)}, but its shard is "
            f"{tuple(shard.shape)}; only the layout of fully_shard is known"
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


def shard_like(shard: Tensor, tensor: Any) -> Tensor:
    """A tensor with this local shard, placed like ``tensor``; the shard itself if that is not a DTensor."""
    if not is_sharded(tensor):
        return shard
    from torch.distributed.tensor import DTensor

    stride = torch.empty(tensor.shape, device="meta").stride()
    dtensor: Tensor = DTensor.from_local(
        shard, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=stride
    )
    return dtensor


def copy_into(target: Tensor, source: Tensor, positions: range) -> None:
    """Copy a whole or equally sharded tensor into one whose local shard covers these flat positions."""
    part = local(source) if is_sharded(source) else source.reshape(-1)[positions.start : positions.stop]
    local(target).copy_(part.reshape(local(target).shape))
