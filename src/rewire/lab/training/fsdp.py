"""A run whose model is spread over the ranks (FSDP2): made whole to be written, and spread again when it is loaded.

So a checkpoint is the same file whoever writes it: one process, DDP or FSDP2. Each goes on with those of the others.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rewire.distributed.dtensor import is_sharded, whole


def shard(model: nn.Module) -> None:
    """Spread the parameters, in place: each part of the model is gathered while it computes, then let go."""
    from torch.distributed.fsdp import fully_shard

    for part in model.children():
        if any(True for _ in part.parameters()):
            fully_shard(part)
    fully_shard(model)


def made_whole(tree: Any) -> Any:
    """The same nested dicts, lists and tuples with whole tensors on the CPU. All ranks must ask."""
    if isinstance(tree, Tensor):
        return whole(tree.detach()).cpu()
    if isinstance(tree, dict):
        return {key: made_whole(value) for key, value in tree.items()}
    return type(tree)(made_whole(value) for value in tree) if isinstance(tree, (list, tuple)) else tree


def load_model(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Load whole tensors into a model that is spread over the ranks."""
    held = model.state_dict()
    model.load_state_dict({name: _spread(value, held.get(name)) for name, value in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load whole tensors into the optimizer of such a model: what has a parameter's shape is spread as it is."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries = {
        index: {key: _spread(value, parameters[index]) for key, value in entry.items()}
        for index, entry in state["state"].items()
    }
    optimizer.load_state_dict(state | {"state": entries})


def unite(masks: dict[str, Tensor]) -> None:
    """Mark on every rank what is marked on any."""
    for mask in masks.values():
        dist.all_reduce(mask.view(torch.uint8), op=dist.ReduceOp.MAX)


def _spread(value: Any, like: Any) -> Any:
    if not isinstance(value, Tensor) or not is_sharded(like) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
