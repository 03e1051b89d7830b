"""Curves: a number for every step, such as a density or the fraction of weights to move."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Constant:
    """The same value at every step."""

    value: float

    def __call__(self, step: int) -> float:
        return self.value

    def ends(self) -> tuple[float, float]:
        """The first and the last value, which are the same."""
        return self.value, self.value


@dataclass(frozen=True)
class Cosine:
    """From ``first`` at step ``begin`` to ``last`` at step ``until`` along half a cosine (RigL).

    >>> [round(Cosine(0.1, 0.0, begin=0, until=4)(step), 4) for step in range(5)]
    [0.1, 0.0854, 0.05, 0.0146, 0.0]
    """

    first: float
    last: float
    begin: int
    until: int

    def __post_init__(self) -> None:
        if not isinstance(self.until, int):
            raise ValueError(
                f"until must be a whole number of optimizer steps, at which a cosine ends, not {self.until!r}"
            )

    def __call__(self, step: int) -> float:
        remaining = (1 + math.cos(math.pi * _progress(step, self.begin, self.until))) / 2
        return self.last + (self.first - self.last) * remaining

    def ends(self) -> tuple[float, float]:
        """The first and the last value."""
        return self.first, self.last


@dataclass(frozen=True)
class Linear:
    """From ``first`` at step ``begin`` to ``last`` at step ``until`` in a straight line."""

    first: float
    last: float
    begin: int
    until: int

    def __call__(self, step: int) -> float:
        return self.last + (self.first - self.last) * (1 - _progress(step, self.begin, self.until))

    def ends(self) -> tuple[float, float]:
        """The first and the last value."""
        return self.first, self.last


@dataclass(frozen=True)
class Cubic:
    """From ``first`` to ``last``, fast at first and slowly at the end: ``last + (first - last) (1 - t)^3`` (GMP).

    >>> [Cubic(1.0, 0.2, begin=0, until=2)(step) for step in range(3)]
    [1.0, 0.30000000000000004, 0.2]
    """

    first: float
    last: float
    begin: int
    until: int

    def __call__(self, step: int) -> float:
        return self.last + (self.first - self.last) * (1 - _progress(step, self.begin, self.until)) ** 3

    def ends(self) -> tuple[float, float]:
        """The first and the last value."""
        return self.first, self.last


def _progress(step: int, begin: int, until: int) -> float:
    """How far a step is from ``begin`` (0) to ``until`` (1)."""
    return min(max((step - begin) / (until - begin), 0.0), 1.0) if until > begin else 0.0
