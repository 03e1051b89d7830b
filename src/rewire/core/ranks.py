"""The processes that hold the layers: a single one, or several ranks with a shard of every layer each.

Parts see the positions of their own shard, numbered within the whole layer, and the counts of the whole layer.
Decisions about whole layers go through ``Ranks``. In a single process they cost nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from torch import Tensor

from rewire.core.topology import ScoredPositions, merge


class Ranks(Protocol):
    """Processes that rewire together. Each method is a collective: all ranks call the same ones in the same order."""

    @property
    def index(self) -> int:
        """The rank of this process; lower ranks hold lower positions."""

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of every rank, in the order of the ranks."""

    def join(self, lists: Sequence[Tensor]) -> list[Tensor]:
        """Each list of integers with those of the other ranks, in the order of the ranks."""

    def largest(self, tops: Sequence[ScoredPositions], ks: Sequence[int]) -> list[ScoredPositions]:
        """The ``k`` largest entries of each list over all ranks; returns those that this process holds."""

    def merge(
        self, tops: Sequence[ScoredPositions], k: int, scales: Sequence[float] | None = None
    ) -> list[ScoredPositions]:
        """``topology.merge`` of the lists of all ranks; returns the entries that this process holds."""


class Alone:
    """A single process that holds whole layers."""

    index = 0

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of the only rank."""
        return [list(numbers)]

    def join(self, lists: Sequence[Tensor]) -> list[Tensor]:
        """The lists of the only rank."""
        return list(lists)

    def largest(self, tops: Sequence[ScoredPositions], ks: Sequence[int]) -> list[ScoredPositions]:
        """The ``k`` largest entries of each list."""
        return [top.largest(k) for top, k in zip(tops, ks, strict=True)]

    def merge(
        self, tops: Sequence[ScoredPositions], k: int, scales: Sequence[float] | None = None
    ) -> list[ScoredPositions]:
        """The ``k`` largest entries of all lists."""
        return merge(tops, k, scales)


ALONE = Alone()


def total(ranks: Ranks, numbers: Iterable[int]) -> list[int]:
    """The sum of each number over the ranks.

    >>> total(ALONE, [3, 4])
    [3, 4]
    """
    return [sum(column) for column in zip(*ranks.gather(list(numbers)), strict=True)]
