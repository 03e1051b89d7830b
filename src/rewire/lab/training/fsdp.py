"""Checkpoints of a model that is sharded over the ranks (FSDP2): gathered to be written, sharded when loaded.

A checkpoint therefore has the same content for one process, DDP and FSDP2, and each resumes from those of the others.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rewire.distributed.dtensor import is_sharded, whole


def shard(model: nn.Module) -> None:
    """Shard the parameters in place: those of each child module are gathered while it computes, then freed."""
    from torch.distributed.fsdp import fully_shard

    for part in model.children():
        if any(True for _ in part.parameters()):
            fully_shard(part)
    fully_shard(model)


def gather_tensors(tree: Any) -> Any:
    """The same nested dicts, lists and tuples with unsharded tensors on the CPU. All ranks must call this."""
    if isinstance(tree, Tensor):
        return whole(tree.detach()).cpu()
    if isinstance(tree, dict):
        return {key: gather_tensors(value) for key, value in tree.items()}
    return type(tree)(gather_tensors(value) for value in tree) if isinstance(tree, (list, tuple)) else tree


def load_model(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Load unsharded tensors into a sharded model."""
    sharded = model.state_dict()
    model.load_state_dict({name: _shard_like(value, sharded.get(name)) for name, value in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load unsharded tensors into the optimizer of a sharded model: state of a parameter's shape is sharded like it."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries = {
        index: {key: _shard_like(value, parameters[index]) for key, value in entry.items()}
        for index, entry in state["state"].items()
    }
    optimizer.load_state_dict(state | {"state": entries})


def merge_masks(masks: dict[str, Tensor]) -> None:
    """Set on every rank, in place, what is set on any rank."""
    for mask in masks.values():
        dist.all_reduce(mask.view(torch.uint8), op=dist.ReduceOp.MAX)


def _shard_like(value: Any, like: Any) -> Any:
    if not isinstance(value, Tensor) or not is_sharded(like) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
