"""When a network is rewired, how much of it moves, and how dense it is: functions of the step.

A *curve* gives a number for every step (a fraction or a density); a *schedule* gives the fraction to move at a step, or
``None`` when it is not time. Steps count completed optimizer steps, so the first is 1.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@runtime_checkable
class Curve(Protocol):
    """A number that depends on the step."""

    def __call__(self, step: int) -> float: ...

    def ends(self) -> tuple[float, float]:
        """The first and the last value; all others lie between them."""


@runtime_checkable
class Schedule(Protocol):
    """The fraction of the active weights to move at a step, or ``None``: not now."""

    def __call__(self, step: int) -> float | None: ...


@dataclass(frozen=True)
class Constant:
    """The same value at every step."""

    value: float

    def __call__(self, step: int) -> float:
        return self.value

    def ends(self) -> tuple[float, float]:
        """The value, twice."""
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
        rest = (1 + math.cos(math.pi * _progress(step, self.begin, self.until))) / 2
        return self.last + (self.first - self.last) * rest

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
    return min(max((step - begin) / (until - begin), 0.0), 1.0) if until > begin else 0.0


@dataclass(frozen=True)
class Never:
    """The topology stays as it was at the start."""

    def __call__(self, step: int) -> float | None:
        return None


@dataclass(frozen=True)
class Periodic:
    """Every ``every`` steps up to and including ``until`` (``None``: for ever), the fraction that the curve gives.

    >>> schedule = Periodic(every=2, until=4, fraction=Constant(0.1))
    >>> [schedule(step) for step in range(1, 7)]
    [None, 0.1, None, 0.1, None, None]
    """

    every: int
    until: int | None
    fraction: Curve

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("until", self.until)):
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= (name == "every")
            if not whole and not (name == "until" and value is None):
                raise ValueError(f"{name} must be a whole number of optimizer steps, not {value!r}")
        if self.until is not None and self.until < self.every:
            raise ValueError(
                f"until={self.until} is before the first rewiring, at every={self.every}: nothing would ever be rewired"
            )
        if not all(0 <= end <= 1 for end in self.fraction.ends()):
            raise ValueError(f"the fraction of weights to move must lie in [0, 1], not {self.fraction!r}")

    @property
    def last(self) -> int:
        """The step of the last rewiring, where a falling density must arrive."""
        if self.until is None:
            raise ValueError("a falling density needs a last step: pass until=")
        return self.until - self.until % self.every

    def __call__(self, step: int) -> float | None:
        due = step > 0 and step % self.every == 0 and (self.until is None or step <= self.until)
        return self.fraction(step) if due else None
