"""Several processes (ranks) that train one network together, under ``torchrun``.

Each takes its part of every batch; rank 0 writes the results.

The numbers are those of one process, up to rounding: random draws are derived from the run's seed, batch norm uses the
statistics of the whole batch, and gradients are averaged over the images of the whole batch.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rewire.lab.training.fsdp import shard

T = TypeVar("T")


@dataclass(frozen=True)
class RankGroup:
    """The ranks that train together, and which of them this process is."""

    rank: int = 0
    size: int = 1
    fsdp: bool = False  # shard the model over the ranks (FSDP2), instead of a copy for each (DDP)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes the results."""
        return self.rank == 0

    def part(self, count: int) -> slice:
        """The part of ``count`` images that this rank takes; parts differ by one image at most.

        >>> [RankGroup(rank, 3).part(8) for rank in range(3)]
        [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
        """
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def on_first(self, act: Callable[[], T]) -> T:
        """Call a function on rank 0 and return its result on every rank. If it raises there, every rank raises."""
        if self.size == 1:
            return act()
        message: list[Any] = [None, None]  # result, error
        failure: Exception | None = None
        if self.first:
            try:
                message[0] = act()
            except Exception as error:
                failure, message[1] = error, f"rank 0 failed: {error}"
        dist.broadcast_object_list(message, src=0)
        if failure is not None:
            raise failure
        if message[1] is not None:
            raise RuntimeError(message[1])
        result: T = message[0]
        return result

    def sum(self, values: Tensor) -> Tensor:
        """Add up the values of all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def prepare(self, model: nn.Module) -> nn.Module:
        """Before there is an optimizer: batch norm over all ranks, and parameters sharded by FSDP2."""
        if self.size > 1:
            for module in model.modules():
                if type(module) is nn.BatchNorm2d:
                    module.__class__ = SharedBatchNorm2d
            if self.fsdp:
                shard(model)
        return model

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model, once it is sparse, in a module that averages gradients over the ranks."""
        if self.size == 1 or self.fsdp:
            return model
        # Buffers are equal on all ranks already: masks, and running statistics of the whole batch.
        return nn.parallel.DistributedDataParallel(model, forward_sync_buffers=False)


class _Sum(torch.autograd.Function):
    """The sum over all ranks. Every rank uses the sum, so its gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


class SharedBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` over the batch of all ranks, on any device; torch's own ``SyncBatchNorm`` needs a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise with the mean and variance of the images of all ranks. A rank may have no image."""
        if not self.training:
            return super().forward(x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        count = x.new_tensor([x.numel() // x.shape[1]], dtype=wide.dtype)
        sums = _Sum.apply(torch.cat([wide.sum((0, 2, 3)), count]))
        count, mean = sums[-1].detach(), sums[:-1] / sums[-1].detach()
        centred = wide - mean.view(1, -1, 1, 1)
        variance = _Sum.apply(centred.square().sum((0, 2, 3))) / count
        self._update_running_statistics(mean.detach(), (variance * count / (count - 1)).detach())
        y: Tensor = centred * torch.rsqrt(variance + self.eps).view(1, -1, 1, 1)
        if self.affine:
            y = y * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return y.to(x.dtype)

    @torch.no_grad()
    def _update_running_statistics(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.num_batches_tracked += 1
            share = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
            self.running_mean.lerp_(mean.to(self.running_mean), share)
            self.running_var.lerp_(variance.to(self.running_var), share)


def under_torchrun() -> bool:
    """Whether ``torchrun`` started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined_ranks(device: str, fsdp: bool = False) -> Iterator[tuple[RankGroup, str]]:
    """The ranks that ``torchrun`` started, and this rank's device; a group of one process without ``torchrun``."""
    if not under_torchrun():
        if fsdp:
            raise ValueError(
                "--fsdp shards a model over several processes, and there is only one: start the run with "
                "torchrun --nproc-per-node 2 -m rewire.lab train --fsdp ..."
            )
        yield RankGroup(), device
        return
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group(dist.get_default_backend_for_device(device))
    try:
        yield RankGroup(dist.get_rank(), dist.get_world_size(), fsdp), device
    finally:
        dist.destroy_process_group()
