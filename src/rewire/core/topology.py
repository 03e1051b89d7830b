"""Integer maths on flat positions: the top-k with its rule for ties, merging, sampling without replacement.

Nothing here knows about layers, stores or methods. Positions are ``int64`` indices into a flattened weight.
The rule for ties, of equal values the first, is in ``joint_topk_masks``; ``distributed.topk`` repeats it for several
ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class ScoredPositions:
    """Positions and a value for each, such as the largest gradients of a layer; sorted by position, not by value."""

    values: Tensor
    positions: Tensor

    def __len__(self) -> int:
        return len(self.positions)

    def where(self, mask: Tensor) -> "ScoredPositions":
        """The entries for which a bool tensor is true."""
        rows = mask.nonzero().squeeze(1)
        return ScoredPositions(self.values.index_select(0, rows), self.positions.index_select(0, rows))

    def largest(self, k: int) -> "ScoredPositions":
        """The ``k`` entries of largest value; of equal ones the first."""
        return self if k >= len(self) else self.where(topk_mask(self.values, k))

    def at(self, positions: Tensor) -> Tensor:
        """The values at sorted positions, zero where there is no entry."""
        values = self.values.new_zeros(len(positions))
        there = contains(self.positions, positions)
        values[there] = self.values[torch.searchsorted(self.positions, positions[there])]
        return values


@dataclass(frozen=True)
class Edit:
    """The result of a rewiring for one layer: sorted positions to drop and to grow, and the values of the grown."""

    drop: Tensor
    grow: Tensor
    value: Tensor


def topk_mask(values: Tensor, k: int) -> Tensor:
    """A bool tensor that is true at the ``k`` largest values; of equal ones the first, on every device.

    >>> topk_mask(torch.tensor([1.0, 3.0, 2.0, 3.0, 3.0]), 2)
    tensor([False,  True, False,  True, False])
    """
    return joint_topk_masks([values], k)[0]


def joint_topk_masks(lists: Sequence[Tensor], k: int) -> list[Tensor]:
    """Bool tensors that are true at the ``k`` largest values of several lists. Of equal values the first are taken.

    ``torch.topk`` may return any of several equal values. So only the k-th largest value is computed, by selection;
    everything above it is taken, and then the first of those equal to it.
    """
    if k <= 0 or k >= sum(map(len, lists)):
        return [torch.full_like(values, k > 0, dtype=torch.bool) for values in lists]
    if len({values.dtype for values in lists}) > 1:
        lists = [values.double() for values in lists]
    kth = _kth_largest(lists, k)
    masks = [values > kth.to(values.device) for values in lists]
    remaining = k - sum(int(mask.sum()) for mask in masks)
    for values, mask in zip(lists, masks, strict=True):
        tied = (values == kth.to(values.device)).nonzero().squeeze(1)[:remaining]
        mask[tied] = True
        remaining -= len(tied)
    return masks


def _kth_largest(lists: Sequence[Tensor], k: int) -> Tensor:
    device = lists[0].device  # a model may be spread over several
    if device.type == "cpu" and all(values.dtype in (torch.float32, torch.float64) for values in lists):
        joined = np.concatenate([values.detach().cpu().numpy() for values in lists])
        joined.partition(len(joined) - k)  # ten times faster than torch.topk there
        return torch.tensor(joined[len(joined) - k])
    return torch.topk(torch.cat([values.to(device) for values in lists]), k, sorted=False).values.min()


def merge(tops: Sequence[ScoredPositions], k: int, scales: Sequence[float] | None = None) -> list[ScoredPositions]:
    """The ``k`` largest entries of several lists, as one list each.

    Of equal entries, those of earlier lists are taken. With ``scales``, the values of a list are divided by its scale
    for the comparison only.

    >>> a = ScoredPositions(torch.tensor([5.0, 1.0]), torch.tensor([0, 3]))
    >>> b = ScoredPositions(torch.tensor([4.0, 1.0]), torch.tensor([8, 9]))
    >>> [one.positions.tolist() for one in merge([a, b], 3)]
    [[0, 3], [8]]
    """
    if sum(map(len, tops)) <= k:
        return list(tops)
    divisors = scales or [1.0] * len(tops)
    masks = joint_topk_masks([t.values if s == 1.0 else t.values / s for t, s in zip(tops, divisors, strict=True)], k)
    return [top.where(mask) for top, mask in zip(tops, masks, strict=True)]


def insert(few: Tensor, many: Tensor) -> Tensor:
    """Merge two sorted lists of positions that have none in common. ``few`` should be the shorter one.

    >>> insert(torch.tensor([2, 9]), torch.tensor([1, 3, 4]))
    tensor([1, 2, 3, 4, 9])
    """
    slots = torch.searchsorted(many, few) + torch.arange(len(few), device=few.device)
    merged = many.new_empty(len(many) + len(few))
    other_slots = torch.ones_like(merged, dtype=torch.bool)
    other_slots[slots] = False
    merged[slots], merged[other_slots] = few, many
    return merged


def sample_inactive(active: Tensor, numel: int, k: int, generator: torch.Generator) -> Tensor:
    """``k`` positions drawn uniformly without replacement from ``range(numel)`` without ``active``, sorted.

    Draws indices into the list of inactive positions and converts them without building that list: O(nnz + k).
    ``active`` is sorted. The draw is made on the CPU, so that every device and every rank gets the same positions.

    >>> sample_inactive(torch.tensor([0, 2, 3]), 5, 2, torch.Generator())
    tensor([1, 4])
    """
    return nth_inactive(distinct(numel - len(active), k, generator), active)


def contains(many: Tensor, positions: Tensor) -> Tensor:
    """Which of the positions are in a sorted list.

    >>> contains(torch.tensor([1, 3, 4]), torch.tensor([4, 2]))
    tensor([ True, False])
    """
    if not len(many):
        return torch.zeros_like(positions, dtype=torch.bool)
    slots = torch.searchsorted(many, positions).clamp_(max=len(many) - 1)
    return many[slots] == positions


def nth_inactive(indices: Tensor, active: Tensor, start: int = 0) -> Tensor:
    """The positions at these indices of the sorted list of inactive positions from ``start`` on; ``active`` is sorted.

    >>> nth_inactive(torch.tensor([0, 1]), torch.tensor([0, 2, 3]))
    tensor([1, 4])
    """
    indices = indices.to(active.device)
    inactive_before = active - torch.arange(start, start + len(active), device=active.device)
    shifted = indices + torch.searchsorted(inactive_before, indices, right=True)
    return shifted + start if start else shifted


def distinct(m: int, k: int, generator: torch.Generator) -> Tensor:
    """``k`` distinct integers below ``m``, sorted and uniformly distributed."""
    if not 0 <= k <= m:
        raise ValueError(f"cannot draw {k} distinct positions out of {m}")
    if 4 * k >= m:
        return torch.randperm(m, generator=generator)[:k].sort().values
    drawn = torch.empty(0, dtype=torch.int64)
    while len(drawn) < k:
        # Redrawing only the missing ones keeps every subset equally likely: each new number is uniform over the rest.
        more = torch.unique(torch.randint(m, (k - len(drawn),), generator=generator))
        drawn = insert(more[~contains(drawn, more)], drawn)
    return drawn
