"""Integer maths on flat positions: the top-k with its rule for ties, merging, sampling without replacement.

Nothing here knows about layers, stores or methods. Positions are ``int64`` indices into a flattened weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Top:
    """The positions that were chosen, sorted, with the values they were chosen for."""

    values: Tensor
    positions: Tensor

    def __len__(self) -> int:
        return len(self.positions)

    def where(self, chosen: Tensor) -> "Top":
        """Those that a bool tensor marks."""
        rows = chosen.nonzero().squeeze(1)
        return Top(self.values.index_select(0, rows), self.positions.index_select(0, rows))

    def strongest(self, k: int) -> "Top":
        """The ``k`` largest of them."""
        return self if k >= len(self) else self.where(top(self.values, k))


@dataclass(frozen=True)
class Edit:
    """All that an algorithm produces for one layer: sorted positions to drop and to grow, and the grown values."""

    drop: Tensor
    grow: Tensor
    value: Tensor


def top(values: Tensor, k: int) -> Tensor:
    """Marks the ``k`` largest values; of equal ones the first: the same answer on every device.

    >>> top(torch.tensor([1.0, 3.0, 2.0, 3.0, 3.0]), 2)
    tensor([False,  True, False,  True, False])
    """
    return top_of_all([values], k)[0]


def top_of_all(lists: Sequence[Tensor], k: int) -> list[Tensor]:
    """Marks the ``k`` largest values of several lists; of equal ones the first of the first list.

    ``torch.topk`` promises nothing about ties, so only the k-th value is looked for. Nothing is sorted.
    """
    if k <= 0 or k >= sum(map(len, lists)):
        return [torch.full_like(values, k > 0, dtype=torch.bool) for values in lists]
    if len({values.dtype for values in lists}) > 1:
        lists = [values.double() for values in lists]
    kth = _kth_largest(lists, k)
    chosen = [values > kth.to(values.device) for values in lists]
    left = k - sum(int(marks.sum()) for marks in chosen)
    for values, marks in zip(lists, chosen, strict=True):
        tied = (values == kth.to(values.device)).nonzero().squeeze(1)[:left]
        marks[tied] = True
        left -= len(tied)
    return chosen


def _kth_largest(lists: Sequence[Tensor], k: int) -> Tensor:
    device = lists[0].device  # a model may be spread over several
    if device.type == "cpu" and all(values.dtype in (torch.float32, torch.float64) for values in lists):
        joined = np.concatenate([values.detach().cpu().numpy() for values in lists])
        joined.partition(len(joined) - k)  # ten times faster than torch.topk there
        return torch.tensor(joined[len(joined) - k])
    return torch.topk(torch.cat([values.to(device) for values in lists]), k, sorted=False).values.min()


def merge(tops: Sequence[Top], k: int, scales: Sequence[float] | None = None) -> list[Top]:
    """The ``k`` largest of several lists, still list by list.

    Ties go to the earlier list. ``scales`` divides the values of each list for the comparison only.

    >>> a = Top(torch.tensor([5.0, 1.0]), torch.tensor([0, 3]))
    >>> b = Top(torch.tensor([4.0, 1.0]), torch.tensor([8, 9]))
    >>> [one.positions.tolist() for one in merge([a, b], 3)]
    [[0, 3], [8]]
    """
    if sum(map(len, tops)) <= k:
        return list(tops)
    divisors = scales or [1.0] * len(tops)
    marks = top_of_all([t.values if s == 1.0 else t.values / s for t, s in zip(tops, divisors, strict=True)], k)
    return [one.where(mark) for one, mark in zip(tops, marks, strict=True)]


def insert(few: Tensor, many: Tensor) -> Tensor:
    """Two sorted lists without common positions as one. Nothing is sorted: the first should be the shorter.

    >>> insert(torch.tensor([2, 9]), torch.tensor([1, 3, 4]))
    tensor([1, 2, 3, 4, 9])
    """
    places = torch.searchsorted(many, few) + torch.arange(len(few), device=few.device)
    joined = many.new_empty(len(many) + len(few))
    rest = torch.ones_like(joined, dtype=torch.bool)
    rest[places] = False
    joined[places], joined[rest] = few, many
    return joined


def sample_inactive(active: Tensor, numel: int, k: int, generator: torch.Generator) -> Tensor:
    """``k`` positions drawn uniformly without replacement from ``range(numel)`` without ``active``, sorted.

    Draws ranks among the inactive and shifts them past the active: O(nnz + k), no dense scan. ``active`` is sorted.
    The draw itself is made on the CPU, so that every device and every rank gets the same.

    >>> sample_inactive(torch.tensor([0, 2, 3]), 5, 2, torch.Generator())
    tensor([1, 4])
    """
    return nth_inactive(distinct(numel - len(active), k, generator), active)


def nth_inactive(ranks: Tensor, active: Tensor, start: int = 0) -> Tensor:
    """The positions, from ``start`` on, of the inactive that have these ranks among them; ``active`` is sorted.

    >>> nth_inactive(torch.tensor([0, 1]), torch.tensor([0, 2, 3]))
    tensor([1, 4])
    """
    ranks = ranks.to(active.device)
    inactive_before = active - torch.arange(start, start + len(active), device=active.device)
    shifted = ranks + torch.searchsorted(inactive_before, ranks, right=True)
    return shifted + start if start else shifted


def distinct(m: int, k: int, generator: torch.Generator) -> Tensor:
    """``k`` distinct integers below ``m``, sorted: a permutation when k is a good part of m, else draw and redraw."""
    if not 0 <= k <= m:
        raise ValueError(f"cannot draw {k} distinct positions out of {m}")
    if 4 * k >= m:
        return torch.randperm(m, generator=generator)[:k].sort().values
    drawn = torch.empty(0, dtype=torch.int64)
    while len(drawn) < k:
        # Redrawing only what is missing keeps every subset equally likely: each new draw is uniform over the rest.
        more = torch.randint(m, (k - len(drawn),), generator=generator)
        drawn = torch.unique(torch.cat([drawn, more]))
    return drawn
