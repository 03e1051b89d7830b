"""The one divider of the library: whole numbers in proportion, exact, within floors and caps."""

from collections.abc import Sequence
from fractions import Fraction


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
