"""Divide a budget into integers in proportion to weights: exact, and within a floor and a cap for each part."""

from collections.abc import Sequence
from fractions import Fraction


def apportion(
    total: int, weights: Sequence[float], caps: Sequence[int], floors: Sequence[int] | None = None
) -> list[int]:
    """Divide ``total`` into integers in proportion to ``weights``, each between its floor and its cap.

    The parts sum to ``total`` exactly; every division of the library goes through this function. A share above its cap
    (or below its floor) is fixed there and the rest is divided again. Shares are then rounded down, and what is left
    goes to the largest remainders, ties to the earlier part. Rational arithmetic: there are no rounding errors. If all
    weights are zero, the shares are in proportion to ``cap - floor``.

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
    """Exact fractional shares, proportional to the weights wherever neither cap nor floor applies."""
    fixed: dict[int, int] = {}
    while True:
        free = [i for i in range(len(caps)) if i not in fixed]
        left = total - sum(fixed.values())
        scale = sum((weights[i] for i in free), Fraction(0))
        basis = [weights[i] for i in free] if scale else [Fraction(caps[i] - floors[i]) for i in free]
        scale = scale or sum(basis, Fraction(0)) or Fraction(1)
        ideal = {i: left * b / scale for i, b in zip(free, basis, strict=True)}
        high = {i: caps[i] for i in free if ideal[i] > caps[i]}
        low = {i: floors[i] for i in free if ideal[i] < floors[i]}
        if not high and not low:
            return [Fraction(fixed[i]) if i in fixed else ideal[i] for i in range(len(caps))]
        # Too much above the caps means that the others get more in the next round, which may lift them over their
        # floors; so only the side with the larger violation is fixed now.
        excess = sum(ideal[i] - cap for i, cap in high.items()) - sum(floor - ideal[i] for i, floor in low.items())
        fixed |= high if excess > 0 else low if excess < 0 else high | low
