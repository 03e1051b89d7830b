"""The same top-k as in one process, when each rank holds a shard of every layer. No candidate ever travels.

A top-k needs one number, the k-th largest value. It is found digit by digit: each rank counts how many of its values
have which leading byte, the counts are summed, and the byte that holds the k-th is known to all; then the next byte,
among those that agree so far. Four sums of 256 counts for float32, eight for float64, whatever k is. Then every rank
keeps its own values above it. Of values equal to it the first are taken: by list, then by rank, whose shards are in the
order of positions. That is the tie-breaking rule of ``core.topology``.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rewire.core.topology import ScoredPositions, merge
from rewire.distributed.group import Group

DIGITS = 256
_BITS = {torch.float32: 32, torch.float64: 64}


class Shards:
    """The ranks that hold a shard of every layer each, in the order of the rows."""

    def __init__(self, group: Group) -> None:
        self.group = group

    @property
    def index(self) -> int:
        """Which shard this process holds."""
        return self.group.index

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of every rank."""
        return self.group.gather(numbers)

    def join(self, lists: Sequence[Tensor]) -> list[Tensor]:
        """Each list over all shards, on every rank."""
        return self.group.join(lists)

    def largest(self, tops: Sequence[ScoredPositions], ks: Sequence[int]) -> list[ScoredPositions]:
        """Of each list, joined over the ranks, the part of its ``k`` largest that this process holds."""
        if not any(ks):
            return [top.largest(0) for top in tops]
        near = [top.largest(k) for top, k in zip(tops, ks, strict=True)]  # no other can be among them
        return self._select(near, [top.values for top in near], list(range(len(tops))), ks)

    def merge(
        self, tops: Sequence[ScoredPositions], k: int, scales: Sequence[float] | None = None
    ) -> list[ScoredPositions]:
        """The part of the ``k`` largest of all lists of all ranks that this process holds."""
        if k <= 0:
            return [top.largest(0) for top in tops]
        near = merge(tops, k, scales)
        factors = scales or [1.0] * len(near)
        scaled = [top.values if s == 1.0 else top.values / s for top, s in zip(near, factors, strict=True)]
        return self._select(near, scaled, [0] * len(near), [k])

    def _select(
        self, tops: Sequence[ScoredPositions], values: Sequence[Tensor], contest: Sequence[int], ks: Sequence[int]
    ) -> list[ScoredPositions]:
        """Keep the winners of each contest; ``contest`` says in which one a list takes part."""
        keys, bits = _keys(values)
        lengths = torch.tensor([len(tensor) for tensor in values], device=keys.device)
        which = torch.repeat_interleave(torch.tensor(contest, device=keys.device), lengths)
        kth, ties = self._kth_largest(keys, which, ks, bits)
        level = kth[which]
        tied = torch.split(keys == level, lengths.tolist())
        above = torch.split(keys > level, lengths.tolist())
        counts = self.gather([int(mask.sum()) for mask in tied])
        quotas = _quotas(counts, contest, ties.tolist())[self.index]
        return [
            top.where(mark | (same & (same.cumsum(0) <= quota)))
            for top, mark, same, quota in zip(tops, above, tied, quotas, strict=True)
        ]

    def _kth_largest(self, keys: Tensor, which: Tensor, ks: Sequence[int], bits: int) -> tuple[Tensor, Tensor]:
        """The k-th largest key of each contest over all ranks, and how many of the equal ones are among the k."""
        left = torch.tensor(list(ks), device=keys.device)
        prefix = torch.zeros_like(left)
        for shift in range(bits - 8, -1, -8):
            digit = keys >> shift  # the first digit has the sign, and none before it
            digit = digit + DIGITS // 2 if shift == bits - 8 else digit & (DIGITS - 1)
            agrees = slice(None) if shift == bits - 8 else (keys >> (shift + 8)) == prefix[which]
            cells = which[agrees] * DIGITS + digit[agrees]
            counts = self.group.add(torch.bincount(cells, minlength=len(left) * DIGITS)).view(-1, DIGITS)
            from_top = counts.flip(1).cumsum(1)
            left = torch.minimum(left, from_top[:, -1])  # where fewer than k exist, all are wanted
            passed = (from_top < left[:, None]).sum(1)
            earlier = torch.where(passed > 0, from_top.gather(1, (passed - 1).clamp(min=0)[:, None])[:, 0], 0)
            left = left - earlier
            kth_digit = DIGITS - 1 - passed
            prefix = kth_digit - DIGITS // 2 if shift == bits - 8 else prefix * DIGITS + kth_digit
        return prefix, left


def _keys(values: Sequence[Tensor]) -> tuple[Tensor, int]:
    """All values as whole numbers in the same order, in one tensor, and how many bits they have."""
    kind = torch.float32
    for tensor in values:
        kind = torch.promote_types(kind, tensor.dtype)
    joined = torch.cat([tensor.to(kind) for tensor in values]) + 0.0  # minus zero is zero
    bits = _BITS[kind]
    raw = joined.view(torch.int32 if bits == 32 else torch.int64)
    flipped = raw ^ ((raw >> (bits - 1)) & torch.iinfo(raw.dtype).max)
    return flipped.long(), bits


def _quotas(counts: Sequence[Sequence[int]], contest: Sequence[int], ties: Sequence[int]) -> list[list[int]]:
    """How many of its tied values each rank may keep of each list: lists in order, within a list ranks in order.

    >>> _quotas([[2, 1], [1, 3]], [0, 0], [4])
    [[2, 1], [1, 0]]
    """
    left = list(ties)
    quotas = [[0] * len(contest) for _ in counts]
    for at, contest_index in enumerate(contest):
        for rank, row in enumerate(counts):
            quotas[rank][at] = min(row[at], left[contest_index])
            left[contest_index] -= quotas[rank][at]
    return quotas
