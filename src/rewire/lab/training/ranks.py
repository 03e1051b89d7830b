"""The ranks that carry out one run together, under ``torchrun``. Each takes its part of every batch; rank 0 writes.

The numbers are those of one process, up to rounding: draws are derived from the run's seed, a batch's statistics are
those of all ranks together, and gradients are averaged over the images of the whole batch.
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
class Team:
    """Which rank this process is, and of how many."""

    rank: int = 0
    size: int = 1
    fsdp: bool = False  # spread the model over the ranks, instead of a copy for each

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def part(self, count: int) -> slice:
        """The part of this rank of ``count`` things; the parts differ by one at most.

        >>> [Team(rank, 3).part(8) for rank in range(3)]
        [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
        """
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def once(self, act: Callable[[], T]) -> T:
        """Let rank 0 do it, and return what it got on every rank. If it fails there, every rank raises: none waits."""
        if self.size == 1:
            return act()
        said: list[Any] = [None, None]
        failure: Exception | None = None
        if self.first:
            try:
                said[0] = act()
            except Exception as error:
                failure, said[1] = error, f"rank 0 failed: {error}"
        dist.broadcast_object_list(said, src=0)
        if failure is not None:
            raise failure
        if said[1] is not None:
            raise RuntimeError(said[1])
        found: T = said[0]
        return found

    def add(self, values: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def prepare(self, model: nn.Module) -> nn.Module:
        """Before there is an optimizer: batch statistics are those of all ranks, and FSDP2 spreads the parameters."""
        if self.size > 1:
            for module in model.modules():
                if type(module) is nn.BatchNorm2d:
                    module.__class__ = SharedBatchNorm2d
            if self.fsdp:
                shard(model)
        return model

    def share(self, model: nn.Module) -> nn.Module:
        """The model as the ranks train it together, once it is sparse: gradients are averaged over the ranks."""
        if self.size == 1 or self.fsdp:
            return model
        # Buffers agree by construction: masks, and running statistics of the whole batch.
        return nn.parallel.DistributedDataParallel(model, forward_sync_buffers=False)


class _Sum(torch.autograd.Function):
    """The sum over all ranks; whoever used it sends a gradient back, so those are summed too."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor) -> Tensor:
        total = mine.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


class SharedBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` over the batch of all ranks, on any device; torch's own ``SyncBatchNorm`` wants a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        """As ever, but means and variances are of everyone's images. A rank may have none."""
        if not self.training:
            return super().forward(x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        count = x.new_tensor([x.numel() // x.shape[1]], dtype=wide.dtype)
        sums = _Sum.apply(torch.cat([wide.sum((0, 2, 3)), count]))
        count, mean = sums[-1].detach(), sums[:-1] / sums[-1].detach()
        centred = wide - mean.view(1, -1, 1, 1)
        variance = _Sum.apply(centred.square().sum((0, 2, 3))) / count
        self._remember(mean.detach(), (variance * count / (count - 1)).detach())
        found: Tensor = centred * torch.rsqrt(variance + self.eps).view(1, -1, 1, 1)
        if self.affine:
            found = found * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return found.to(x.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.num_batches_tracked += 1
            share = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
            self.running_mean.lerp_(mean.to(self.running_mean), share)
            self.running_var.lerp_(variance.to(self.running_var), share)


def launched() -> bool:
    """Whether ``torchrun`` started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def gathered(device: str, fsdp: bool = False) -> Iterator[tuple[Team, str]]:
    """The team that ``torchrun`` started, and this rank's device; one process alone without it."""
    if not launched():
        if fsdp:
            raise ValueError(
                "--fsdp spreads a run over several processes, and this is one: start it with "
                "torchrun --nproc-per-node 2 -m rewire.lab train --fsdp ..."
            )
        yield Team(), device
        return
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group(dist.get_default_backend_for_device(device))
    try:
        yield Team(dist.get_rank(), dist.get_world_size(), fsdp), device
    finally:
        dist.destroy_process_group()
