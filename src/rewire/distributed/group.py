"""The two collectives that rewiring uses, with an account of what they send."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gathered(numbers: int, ranks: int) -> float:
    """The bytes that each of ``ranks`` sends when all learn the numbers of all, in a ring."""
    return 8.0 * numbers * (ranks - 1)


def summed(numbers: int, ranks: int) -> float:
    """The bytes that each of ``ranks`` sends when all learn the sums, in a ring."""
    return 2 * 8.0 * numbers * (ranks - 1) / ranks


@dataclass
class Traffic:
    """How often ranks met, and the bytes that each sent for it, counted as in a ring."""

    meetings: int = 0
    bytes: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.meetings + other.meetings, self.bytes + other.bytes)

    def __sub__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.meetings - other.meetings, self.bytes - other.bytes)


class Group:
    """Some ranks of a run, and what was sent among them."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group, self._device = group, device
        self.index, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.traffic = Traffic()

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of every rank, in the order of the ranks. All give equally many."""
        if not numbers or self.size == 1:
            return [list(numbers)] * self.size
        mine = torch.tensor(list(numbers), dtype=torch.int64, device=self._device)
        everyone = mine.new_empty(self.size, len(mine))
        dist.all_gather(list(everyone.unbind()), mine, group=self._group)
        self.traffic += Traffic(1, gathered(len(mine), self.size))
        found: list[list[int]] = everyone.tolist()
        return found

    def add(self, counts: Tensor) -> Tensor:
        """The sum of int64 numbers over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(counts, group=self._group)
            self.traffic += Traffic(1, summed(counts.numel(), self.size))
        return counts

    def tell(self, something: Any) -> list[Any]:
        """What every rank says, in the order of the ranks; for what is said once, not at every rewiring."""
        said: list[Any] = [None] * self.size
        dist.all_gather_object(said, something, group=self._group)
        return said
