"""Integer maths on flat positions: the one divider, the one top-k, the one sampler.

Nothing here knows about layers, stores or methods. Positions are ``int64`` indices into a flattened weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

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

    ``torch.topk`` promises nothing about ties, so only the k-th value is looked for. Nothing is sorted.

    >>> top(torch.tensor([1.0, 3.0, 2.0, 3.0, 3.0]), 2)
    tensor([False,  True, False,  True, False])
    """
    if k <= 0 or k >= len(values):
        return torch.full_like(values, k > 0, dtype=torch.bool)
    kth = _kth_largest(values, k)
    chosen = values > kth
    tied = (values == kth).nonzero().squeeze(1)
    chosen[tied[: k - int(chosen.sum())]] = True
    return chosen


def _kth_largest(values: Tensor, k: int) -> Tensor:
    if values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64):  # ten times faster there
        return torch.from_numpy(np.partition(values.detach().numpy(), len(values) - k))[len(values) - k]
    return torch.topk(values, k, sorted=False).values.min()


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
    device = tops[0].values.device  # a model may be spread over several
    scaled = (t.values if s == 1.0 else t.values / s for t, s in zip(tops, scales or [1.0] * len(tops), strict=True))
    values = torch.cat([one.to(device) for one in scaled])
    marks = torch.split(top(values, k), [len(one) for one in tops])
    return [one.where(mark.to(one.values.device)) for one, mark in zip(tops, marks, strict=True)]


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


def apportion(
    total: int, weights: Sequence[float], caps: Sequence[int], floors: Sequence[int] | None = None
) -> list[int]:
    """Divide ``total`` into integers in proportion to ``weights``, each between its floor and its cap.

    The single divider of the library: it sums to ``total`` exactly. A share that would exceed its cap (or fall below
    its floor) is pinned there and the rest is divided anew; then whole parts first, the largest remainders get the
    ones that are left. Exact rational arithmetic, so no rounding can drift. Without any weight, room decides.

    >>> apportion(7, [1, 1, 1], [10, 10, 10])
    [3, 2, 2]
    >>> apportion(9, [100, 1, 1], [5, 10, 10])
    [5, 2, 2]
    """
    low = [0] * len(caps) if floors is None else list(floors)
    if not sum(low) <= total <= sum(caps):
        raise ValueError(f"cannot divide {total} into parts of at least {low} and at most {list(caps)}")
    shares = _shares(total, [Fraction(w) for w in weights], caps, low)
    parts = [int(s) for s in shares]
    by_remainder = sorted(range(len(parts)), key=lambda i: (parts[i] - shares[i], i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def _shares(total: int, weights: list[Fraction], caps: Sequence[int], floors: Sequence[int]) -> list[Fraction]:
    """Real-valued shares, proportional to the weights wherever neither cap nor floor binds."""
    fixed: dict[int, int] = {}
    while True:
        free = [i for i in range(len(caps)) if i not in fixed]
        left = total - sum(fixed.values())
        scale = sum((weights[i] for i in free), Fraction(0))
        basis = [weights[i] for i in free] if scale else [Fraction(caps[i] - floors[i]) for i in free]
        scale = scale or sum(basis, Fraction(0)) or Fraction(1)
        wish = {i: left * b / scale for i, b in zip(free, basis, strict=True)}
        high = {i: caps[i] for i in free if wish[i] > caps[i]}
        low = {i: floors[i] for i in free if wish[i] < floors[i]}
        if not high and not low:
            return [Fraction(fixed[i]) if i in fixed else wish[i] for i in range(len(caps))]
        # Pin the side that is violated more: pinning the other first could prove wrong once this side is settled.
        excess = sum(wish[i] - c for i, c in high.items()) - sum(c - wish[i] for i, c in low.items())
        fixed |= high if excess > 0 else low if excess < 0 else high | low
