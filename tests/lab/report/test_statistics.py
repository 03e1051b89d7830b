"""Intervals with answers that are known, and studies that are simulated to see how often intervals hold."""

import math
import random
from functools import partial

import pytest
from scipy import stats

from rewire.lab.report.shortfalls import worst_shortfall
from rewire.lab.report.statistics import jackknife_interval, mean_interval, paired_difference, t_cdf, t_quantile


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 29, 200])
@pytest.mark.parametrize("probability", [0.01, 0.5, 0.9, 0.975, 0.999])
def test_quantiles_are_those_of_students_t(degrees, probability):
    assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), abs=1e-9)
    assert t_cdf(-1.3, degrees) == pytest.approx(stats.t.cdf(-1.3, degrees), abs=1e-12)


def test_an_interval_by_hand():
    interval = mean_interval([70.0, 72.0, 77.0])  # mean 73, variance 13, t of two degrees 4.302653
    assert interval.mean == 73
    assert interval.half_width == pytest.approx(4.302653 * math.sqrt(13 / 3), abs=1e-5)


def test_one_value_has_no_interval():
    interval = mean_interval([70.0])
    assert (interval.mean, interval.n) == (70, 1)
    assert math.isnan(interval.low)
    assert not interval.excludes_zero


def test_differences_are_taken_seed_by_seed():
    ours, theirs = {0: 80.0, 1: 60.0, 2: 71.0, 7: 99.0}, {0: 79.0, 1: 59.0, 2: 69.0, 5: 0.0}
    interval = paired_difference(ours, theirs)  # 1, 1, 2: mean 4/3, deviation sqrt(1/3)
    assert interval.n == 3
    assert interval.mean == pytest.approx(4 / 3)
    assert interval.half_width == pytest.approx(4.302653 / 3, abs=1e-5)
    assert not interval.excludes_zero
    assert mean_interval(list(ours.values())).half_width > 10 * interval.half_width  # what pairing is for
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def test_a_difference_that_is_there_is_found():
    assert paired_difference({0: 5.0, 1: 6.1, 2: 7.0}, {0: 1.0, 1: 2.0, 2: 3.0}).excludes_zero
    assert paired_difference({0: 1.0, 1: 2.0, 2: 3.0}, {0: 5.0, 1: 6.1, 2: 7.0}).excludes_zero


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_about_95_of_100_intervals_hold_the_true_difference(seeds):
    """Studies of two methods: seeds shift both alike, and each run has noise of its own."""
    generator, truth, held, studies = random.Random(seeds), 0.7, 0, 4000
    for _ in range(studies):
        shared = [generator.gauss(0, 3) for _ in range(seeds)]
        ours = {i: 80 + truth + shared[i] + generator.gauss(0, 1) for i in range(seeds)}
        theirs = {i: 80 + shared[i] + generator.gauss(0, 1) for i in range(seeds)}
        interval = paired_difference(ours, theirs)
        held += interval.low <= truth <= interval.high
    assert 0.94 <= held / studies <= 0.96  # four standard errors are 0.014


def test_the_jackknife_of_a_maximum_by_hand():
    values = [1.0, 2.0, 6.0]  # without one of them: 6, 6, 2
    interval = jackknife_interval(lambda seeds: max(values[seed] for seed in seeds), range(3))
    assert (interval.mean, interval.n) == (6.0, 3)
    assert interval.half_width == pytest.approx(4.303 * 2 * math.sqrt(16 / 3) / math.sqrt(3), abs=1e-2)


ACCURACIES = {  # three growths in four settings; the worst shortfalls: 3, 10 and 4
    "observed": {"mix": (90, 80, 32, 50), "random": (88, 70, 35, 45), "gradient": (91, 79, 31, 51)},
    "alike": {"mix": (90, 80, 32, 50), "random": (90, 80, 32, 50), "gradient": (90, 80, 32, 50)},
}


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("truth", ACCURACIES.values(), ids=ACCURACIES)
def test_about_95_of_100_jackknife_intervals_hold_the_true_gap_of_worst_shortfalls(seeds, truth):
    """The rule of claims d and e, where the maximum is not a smooth statistic of the means."""
    generator, held, studies = random.Random(seeds), 0, 600

    def gap(settings, chosen):
        return worst_shortfall(settings, "random", chosen) - worst_shortfall(settings, "mix", chosen)

    exact = [{name: {0: float(values[i])} for name, values in truth.items()} for i in range(4)]
    for _ in range(studies):
        noisy = [
            {name: {seed: value[0] + generator.gauss(0, 1) for seed in range(seeds)} for name, value in setting.items()}
            for setting in exact
        ]
        interval = jackknife_interval(partial(gap, noisy), range(seeds))
        held += interval.low <= gap(exact, [0]) <= interval.high
    assert held / studies >= 0.92  # three standard errors are 0.027


def test_one_seed_has_no_jackknife_interval():
    assert math.isnan(jackknife_interval(lambda seeds: 1.0, [0]).low)
