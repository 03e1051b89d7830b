"""The time left: of sweeps whose costs are known."""

import random
from dataclasses import replace

import pytest

from rewire.lab.cli.estimate import Estimate
from rewire.lab.run import Run

BASE = Run(data="cifar100", model="resnet-18", epochs=10)


def finish(runs, workers, cost, first):
    """The real time from the end of the first epoch of the first run: workers take runs in their order."""
    free = [0.0] * workers
    for run in runs:
        worker = min(range(workers), key=free.__getitem__)
        free[worker] += run.epochs * cost(run)
    return max(free) - first


def estimate_after_first_epoch(runs, workers, cost):
    estimate = Estimate(runs, workers)
    assert estimate.left(dict.fromkeys((run.id for run in runs), 0)) is None
    estimate.add_epoch(runs[0], cost(runs[0]))
    epochs = {run.id: int(run is runs[0]) for run in runs}
    return estimate.left(epochs, runs[:workers])


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_runs_of_equal_cost_are_exact(workers):
    runs = [replace(BASE, seed=seed) for seed in range(7)]
    left = estimate_after_first_epoch(runs, workers, lambda run: 2.0)
    real = finish(runs, workers, lambda run: 2.0, 2.0)
    assert real <= left <= real + 2.0 * (workers > 1)  # the other workers are as far, and have not said so yet


def test_the_last_run_is_not_shared_between_workers():
    run = replace(BASE, epochs=100)
    assert estimate_after_first_epoch([run], 4, lambda run: 1.0) == pytest.approx(99)


def test_the_first_estimate_of_a_mixed_sweep_is_within_a_factor_of_two():
    """Networks of different size, methods that cost up to a third more, and noise."""
    rng = random.Random(0)
    noise = {}

    def cost(run):
        base = {"resnet-18": 30.0, "mobilenet-v2": 8.0}[run.model] * run.width**1.5
        extra = {"dense": 1.0, "set": 1.1, "ggr": 1.3}[run.method]
        return base * extra * noise.setdefault(run.id, rng.uniform(0.9, 1.1))

    runs = [
        Run(
            data="cifar100",
            model=model,
            width=width,
            method=method,
            sparsity=0.9 if method != "dense" else 0.0,
            epochs=12,
        )
        for model, width in (("mobilenet-v2", 0.5), ("resnet-18", 0.25))
        for method in ("dense", "set", "ggr")
    ]
    left = estimate_after_first_epoch(runs, 2, cost)
    real = finish(runs, 2, cost, cost(runs[0]))
    assert real / 2 <= left <= real * 2


def test_what_was_timed_counts_more_than_what_is_guessed():
    runs = [BASE, replace(BASE, method="deepr", start="uniform")]
    estimate = Estimate(runs, 1)
    estimate.add_epoch(runs[0], 1.0)
    assert estimate.epoch(runs[1]) == 1.0
    estimate.add_epoch(runs[1], 5.0)
    assert (estimate.epoch(runs[0]), estimate.epoch(runs[1])) == (1.0, 5.0)


def test_short_runs_are_estimated_with_what_surrounds_their_epochs():
    """Four runs of two epochs of 0.1 s that take 1 s to set up and 0.5 s to end, one worker, after the first epoch."""
    runs = [replace(BASE, epochs=2, seed=seed) for seed in range(4)]
    estimate = Estimate(runs, 1)
    estimate.add_setup(2.0, first=True)  # a half of which is expected of the others
    estimate.add_epoch(runs[0], 0.1)
    epochs = {run.id: int(run is runs[0]) for run in runs}
    assert estimate.left(epochs, runs[:1]) == pytest.approx(0.1 + 3 * 1.2)
    estimate.add_end(0.5)
    assert estimate.left(epochs, runs[:1]) == pytest.approx(0.6 + 3 * 1.7)
    estimate.add_setup(0.2)
    assert estimate.left(epochs, runs[:1]) == pytest.approx(0.6 + 3 * 0.9)
