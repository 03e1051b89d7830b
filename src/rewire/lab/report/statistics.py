"""Intervals for means over seeds, and for differences between methods that ran with the same seeds.

Runs with the same seed share their first weights and the order of their data, so methods are compared seed by seed: the
differences vary less than the accuracies do.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

LEVEL = 0.95
ENOUGH_SEEDS = 3  # before a difference counts as one: two that agree by chance have an interval without width
ROUNDING = 1e-9  # what is left of a spread of zero


@dataclass(frozen=True)
class Interval:
    """A mean and the bounds of its confidence interval; a single value has none (``nan``)."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def bounds(self) -> tuple[float, float]:
        """Its ends."""
        return self.low, self.high

    @property
    def half_width(self) -> float:
        """Half the length of the interval: the number behind ``±``."""
        return (self.high - self.low) / 2

    @property
    def has_width(self) -> bool:
        """Whether there are several seeds, and not all of them gave the same."""
        return self.high - self.low > ROUNDING

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside of the interval."""
        return self.low > 0 or self.high < 0


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Student's t interval: ``mean ± t s / sqrt(n)`` with the sample's standard deviation and n - 1 degrees of freedom.

    >>> interval = mean_interval([1.0, 2.0, 3.0])
    >>> round(interval.mean, 3), round(interval.half_width, 3)
    (2.0, 2.484)
    """
    n, mean = len(values), fmean(values)
    if n < 2:
        return Interval(mean, math.nan, math.nan, n)
    half = t_quantile((1 + level) / 2, n - 1) * stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def at_level(interval: Interval, level: float) -> Interval:
    """The t interval of the same values at another level, given the one at ``LEVEL``.

    >>> values = [1.0, 2.0, 4.0]
    >>> round(at_level(mean_interval(values), 0.99).low - mean_interval(values, 0.99).low, 9)
    0.0
    """
    if interval.n < 2:
        return interval
    quantile, usual = (t_quantile((1 + confidence) / 2, interval.n - 1) for confidence in (level, LEVEL))
    half = interval.half_width * quantile / usual
    return Interval(interval.mean, interval.mean - half, interval.mean + half, interval.n)


def share_interval(count: int, n: int, level: float = LEVEL) -> Interval:
    """Clopper and Pearson's interval for the probability behind ``count`` of ``n``; it is never empty.

    >>> interval = share_interval(0, 3)
    >>> round(interval.low, 3), round(interval.high, 3)
    (0.0, 0.708)
    """
    tail = (1 - level) / 2
    low = _solve(lambda p: _incomplete_beta(p, count, n - count + 1), tail, 0, 1) if count else 0.0
    high = _solve(lambda p: _incomplete_beta(p, count + 1, n - count), 1 - tail, 0, 1) if count < n else 1.0
    return Interval(count / n, low, high, n)


def in_percent(interval: Interval) -> Interval:
    """The interval of a share, times a hundred."""
    return Interval(100 * interval.mean, 100 * interval.low, 100 * interval.high, interval.n)


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float], level: float = LEVEL) -> Interval | None:
    """The t interval of ``ours - theirs``, over the seeds that both have; nothing if they share none.

    >>> paired_difference({0: 3.0, 1: 5.0}, {1: 4.0, 2: 9.0}).mean
    1.0
    """
    differences = [ours[seed] - theirs[seed] for seed in sorted(ours) if seed in theirs]
    return mean_interval(differences, level) if differences else None


def jackknife_interval(
    statistic: Callable[[Sequence[int]], float], seeds: Sequence[int], level: float = LEVEL
) -> Interval:
    """The interval of a statistic of several seeds, from its values with one seed left out at a time (Tukey).

    For a mean it is Student's t interval.

    >>> values = [1.0, 2.0, 4.0]
    >>> made = jackknife_interval(lambda seeds: fmean(values[seed] for seed in seeds), range(3))
    >>> round(made.low - mean_interval(values).low, 9)
    0.0
    """
    n, whole = len(seeds), statistic(seeds)
    if n < 2:
        return Interval(whole, math.nan, math.nan, n)
    partial = [statistic([seed for seed in seeds if seed != left_out]) for left_out in seeds]
    half = t_quantile((1 + level) / 2, n - 1) * (n - 1) * stdev(partial) / math.sqrt(n)
    return Interval(whole, whole - half, whole + half, n)


def t_quantile(probability: float, degrees: float) -> float:
    """The quantile of Student's t distribution.

    >>> round(t_quantile(0.975, 4), 4)
    2.7764
    """
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    high = 1.0
    while t_cdf(high, degrees) < probability:
        high *= 2
    return _solve(lambda t: t_cdf(t, degrees), probability, 0, high)


def _solve(rising: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Where a rising function reaches a value, by bisection."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < target else (low, middle)
    return (low + high) / 2


def t_cdf(t: float, degrees: float) -> float:
    """The distribution function of Student's t: ``1 - I_x(d/2, 1/2) / 2`` with ``x = d / (d + t^2)`` for t >= 0."""
    tail = _incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5) / 2
    return 1 - tail if t >= 0 else tail


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz's method)."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1 - _incomplete_beta(1 - x, b, a)
    logarithm = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    tiny, c = 1e-300, 1.0
    d = 1 / (1 - (a + b) * x / (a + 1) or tiny)
    fraction = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(logarithm) * fraction / a
