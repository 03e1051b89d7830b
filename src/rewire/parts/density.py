"""Curves: a number for every step, such as a density or the fraction of weights to move.

A curve from ``begin`` to ``until`` has its first value up to ``begin`` and its last from ``until`` on; if it ends where
it begins, it jumps after that step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rewire.core.method import refuse_density


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
        _refuse_no_steps(begin=self.begin, until=self.until)

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

    def __post_init__(self) -> None:
        _refuse_no_steps(begin=self.begin, until=self.until)

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

    def __post_init__(self) -> None:
        _refuse_no_steps(begin=self.begin, until=self.until)

    def __call__(self, step: int) -> float:
        return self.last + (self.first - self.last) * (1 - _progress(step, self.begin, self.until)) ** 3

    def ends(self) -> tuple[float, float]:
        """The first and the last value."""
        return self.first, self.last


@dataclass(frozen=True)
class Sigmoid:
    """From ``first`` to ``last`` slowly, fast in the middle and slowly again: a logistic function, scaled to its ends.

    With progress ``t`` from 0 to 1 and ``s(t) = 1 / (1 + exp(-steepness (t - 1/2)))``, the value is
    ``last + (first - last) (s(1) - s(t)) / (s(1) - s(0))``.

    >>> [round(Sigmoid(0.5, 0.1, begin=0, until=4)(step), 4) for step in range(5)]
    [0.5, 0.472, 0.3, 0.128, 0.1]
    """

    first: float
    last: float
    begin: int
    until: int
    steepness: float = 10.0

    def __post_init__(self) -> None:
        _refuse_no_steps(begin=self.begin, until=self.until)
        if not 0 < self.steepness < math.inf:
            raise ValueError(f"the steepness of a sigmoid must be positive and finite, not {self.steepness!r}")

    def __call__(self, step: int) -> float:
        start, now, end = (self._logistic(t) for t in (0.0, _progress(step, self.begin, self.until), 1.0))
        return self.last + (self.first - self.last) * (end - now) / (end - start)

    def _logistic(self, t: float) -> float:
        return (1 + math.tanh(self.steepness * (t - 0.5) / 2)) / 2  # 1 / (1 + exp(-x)), which overflows

    def ends(self) -> tuple[float, float]:
        """The first and the last value."""
        return self.first, self.last


@dataclass(frozen=True)
class Stepwise:
    """A constant between steps: ``values[0]`` before step ``at[0]``, then ``values[1]`` until step ``at[1]``, ...

    >>> [Stepwise((0.3, 0.2, 0.1), at=(2, 3))(step) for step in range(5)]
    [0.3, 0.3, 0.2, 0.1, 0.1]
    """

    values: tuple[float, ...]
    at: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.values, Sequence) or not isinstance(self.at, Sequence):
            raise ValueError(f"a stepwise curve has several values and the steps between them, not {self!r}")
        for step in self.at:
            _refuse_no_steps(at=step)
        if len(self.values) != len(self.at) + 1:
            raise ValueError(f"{len(self.at)} steps divide {len(self.at) + 1} values, not {len(self.values)}: {self!r}")
        if list(self.at) != sorted(self.at):
            raise ValueError(f"the steps of a stepwise curve must be in order, not {self.at!r}")

    def __call__(self, step: int) -> float:
        return self.values[sum(step >= at for at in self.at)]

    def ends(self) -> tuple[float, float]:
        """The first and the last value."""
        return self.values[0], self.values[-1]

    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest value."""
        return min(self.values), max(self.values)

    @property
    def falls(self) -> bool:
        """Whether some value is lower than the one before it."""
        return any(later < earlier for earlier, later in zip(self.values, self.values[1:], strict=False))


@dataclass(frozen=True)
class Alternating:
    """Alternates between ``high`` and ``low`` every ``every`` steps, and is ``low`` from step ``until`` on (AC/DC).

    It is ``high`` before step ``every``. ``until`` is a multiple of ``every``; the phases are counted back from it, so
    with an even number of them the first phase is twice as long.

    >>> [Alternating(1.0, 0.1, every=2, until=6)(step) for step in range(8)]
    [1.0, 1.0, 0.1, 0.1, 1.0, 1.0, 0.1, 0.1]
    >>> [Alternating(1.0, 0.1, every=2, until=4)(step) for step in range(6)]
    [1.0, 1.0, 1.0, 1.0, 0.1, 0.1]
    """

    high: float
    low: float
    every: int
    until: int
    falls: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _refuse_no_steps(every=self.every, until=self.until)
        if self.every < 1:
            raise ValueError(f"every, the length of a phase, must be at least one step, not {self.every}")
        if self.until % self.every:
            raise ValueError(
                f"until={self.until} must be a multiple of every={self.every}, where the last phase begins"
            )
        if self.low > self.high:
            raise ValueError(f"low={self.low} must not exceed high={self.high}")

    def __call__(self, step: int) -> float:
        phases_left = self.until // self.every - min(step, self.until) // self.every
        return self.low if step >= self.every and phases_left % 2 == 0 else self.high

    def ends(self) -> tuple[float, float]:
        """``high`` and ``low``."""
        return self.high, self.low


def surplus(density: float, share: float) -> tuple[float, float]:
    """A density that is higher by a share, and the fraction to drop from it to come back."""
    refuse_density(density)
    if not share >= 0:
        raise ValueError(f"fraction, the surplus over the density, must be at least 0, not {share!r}")
    high = min(density * (1 + share), 1.0)
    return high, 1 - density / high


def _progress(step: int, begin: int, until: int) -> float:
    """How far a step is from ``begin`` (0) to ``until`` (1)."""
    if step <= begin:
        return 0.0
    return 1.0 if step >= until else (step - begin) / (until - begin)


def _refuse_no_steps(**steps: object) -> None:
    """Raise unless all are whole numbers."""
    for name, value in steps.items():
        if not isinstance(value, int):
            raise ValueError(f"{name} must be a whole number of optimizer steps, as a curve counts them, not {value!r}")
