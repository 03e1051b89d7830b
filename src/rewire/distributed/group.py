"""The two collectives that rewiring uses, with an account of what they send."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass
class Traffic:
    """How often ranks met, and the bytes that each sent for it.

    Bytes as in a ring: to sum ``n`` bytes over ``r`` ranks each sends ``2 n (r - 1) / r``; to gather ``n`` of every
    rank each sends ``n (r - 1)``.
    """

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
        self.traffic += Traffic(1, 8 * len(mine) * (self.size - 1))
        found: list[list[int]] = everyone.tolist()
        return found

    def add(self, counts: Tensor) -> Tensor:
        """The sum over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(counts, group=self._group)
            self.traffic += Traffic(1, 2 * counts.numel() * counts.element_size() * (self.size - 1) / self.size)
        return counts

    def tell(self, something: Any) -> list[Any]:
        """What every rank says, in the order of the ranks; for what is said once, not at every rewiring."""
        said: list[Any] = [None] * self.size
        dist.all_gather_object(said, something, group=self._group)
        return said
