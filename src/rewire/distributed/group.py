"""The collectives that sparse training uses, with an account of what they send."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gathered(numbers: int, ranks: int) -> float:
    """The bytes that each of ``ranks`` sends when all learn the numbers of all, in a ring."""
    return 8.0 * numbers * (ranks - 1)


def summed(numbers: int, ranks: int, itemsize: int = 8) -> float:
    """The bytes that each of ``ranks`` sends when all learn the sums, in a ring."""
    return 2.0 * itemsize * numbers * (ranks - 1) / ranks


@dataclass(frozen=True)
class Traffic:
    """How many collectives were called, and the bytes that each rank sent in them, counted as for a ring."""

    collectives: int = 0
    bytes: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.collectives + other.collectives, self.bytes + other.bytes)

    def __mul__(self, times: int) -> "Traffic":
        return Traffic(self.collectives * times, self.bytes * times)

    def __sub__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.collectives - other.collectives, self.bytes - other.bytes)


class Group:
    """Some ranks of a run, and what was sent among them."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group, self._device = group, device
        self.index, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.traffic = Traffic()

    def apart(self) -> "Group":
        """The same ranks in a process group of its own, with what is sent counted from zero.

        Collectives of one process group must start in the same order on all ranks; those of different groups need not.
        """
        if self.size == 1:
            return Group(self._group, self._device)
        ranks, backend = dist.get_process_group_ranks(self._group), dist.get_backend_config(self._group)
        return Group(dist.new_group(ranks, backend=backend, use_local_synchronization=True), self._device)

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of every rank, in the order of the ranks. All give equally many."""
        if not numbers or self.size == 1:
            return [list(numbers)] * self.size
        mine = torch.tensor(list(numbers), dtype=torch.int64, device=self._device)
        everyone = mine.new_empty(self.size, len(mine))
        dist.all_gather(list(everyone.unbind()), mine, group=self._group)
        self.traffic += Traffic(1, gathered(len(mine), self.size))
        rows: list[list[int]] = everyone.tolist()
        return rows

    def join(self, lists: Sequence[Tensor]) -> list[Tensor]:
        """Each list of int64 numbers followed by those of the other ranks, in the order of the ranks."""
        lengths = self.gather([len(numbers) for numbers in lists])
        if not lists or self.size == 1:
            return list(lists)
        mine = torch.cat(list(lists)).to(self._device)
        everyone = mine.new_zeros(self.size, max(map(sum, lengths)))  # ranks with fewer numbers send zeros after them
        padded = torch.cat([mine, mine.new_zeros(everyone.shape[1] - len(mine))])
        dist.all_gather(list(everyone.unbind()), padded, group=self._group)
        self.traffic += Traffic(1, gathered(everyone.shape[1], self.size))
        split = [row[: sum(counts)].split(counts) for row, counts in zip(everyone, lengths, strict=True)]
        return [torch.cat(parts) for parts in zip(*split, strict=True)]

    def add(self, counts: Tensor) -> Tensor:
        """The sum of int64 numbers over the ranks; the tensor that is given may be overwritten."""
        if self.size > 1:
            away = counts.to(self._device)  # weights may be kept on the CPU, and ranks talk between devices
            dist.all_reduce(away, group=self._group)
            counts = away.to(counts.device)
            self.traffic += Traffic(1, summed(counts.numel(), self.size))
        return counts

    def average(self, values: Tensor) -> Tensor:
        """The mean of floats over the ranks, in place."""
        work = self.start_sum(values.div_(self.size))
        if work is not None:
            work.wait()
        return values

    def start_sum(self, values: Tensor) -> dist.Work | None:
        """Start to add floats over the ranks, in place; wait for what is returned, if anything."""
        if self.size == 1:
            return None
        self.traffic += Traffic(1, summed(values.numel(), self.size, values.element_size()))
        work: dist.Work = dist.all_reduce(values, group=self._group, async_op=True)
        return work

    def broadcast(self, values: Tensor) -> None:
        """Give all ranks the values of the first one, in place."""
        if self.size > 1:
            dist.broadcast(values, dist.get_global_rank(self._group, 0), group=self._group)

    def exchange(self, something: Any) -> list[Any]:
        """The objects of all ranks, in the order of the ranks. Pickles them: for the start, not for every rewiring."""
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, something, group=self._group)
        return everyone
