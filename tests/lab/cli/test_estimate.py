"""The time left: of sweeps whose costs are known."""

import json
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rewire.lab.cli.display import Display
from rewire.lab.cli.estimate import Estimate
from rewire.lab.run import Run

# Real sweeps, with the times of their events up to the first epoch, and when they ended.
SWEEPS = json.loads((Path(__file__).parent / "recorded_sweeps.json").read_text())
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


@pytest.mark.parametrize("name", SWEEPS)
def test_the_first_estimate_of_real_sweeps_is_within_a_factor_of_two(name, monkeypatch):
    sweep = SWEEPS[name]
    runs = [Run.from_dict(values) for values in sweep["runs"]]
    display = Display(runs, sweep["workers"], {})
    for event in sweep["events"]:
        monkeypatch.setattr(time, "monotonic", lambda now=event["t"]: now)
        display.listen(runs[event["run"]], {"loss": 1.0} | event)
    left = display.seconds_left()
    real = sweep["end"] - sweep["events"][-1]["t"]
    assert real / 2 <= left <= real * 2


def events_of(runs, workers, done, times):
    """What a sweep tells, with the times at which it does: workers take up unfinished runs in their order."""
    setup, epoch, end = times
    free, events = [0.0] * workers, []
    for run in runs:
        if done.get(run.id, 0) >= run.epochs:
            continue
        worker = min(range(workers), key=free.__getitem__)
        now = free[worker]
        events.append((now, run, {"kind": "begin"}))
        now += setup
        for number in range(done.get(run.id, 0) + 1, run.epochs + 1):
            now += epoch
            events.append((now, run, {"kind": "epoch", "epoch": number, "seconds": epoch, "loss": 1.0}))
        now += end
        events.append((now, run, {"kind": "done", "accuracy": 0.5}))
        free[worker] = now
    return sorted(events, key=lambda event: event[0])


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("times", [(0.0, 10.0, 0.0), (3.0, 0.5, 0.2), (1.0, 1.0, 1.0)], ids=["long", "short", "even"])
def test_a_resumed_sweep_is_estimated_within_a_factor_of_two_from_its_first_epoch_on(workers, times, monkeypatch):
    """Three runs are finished and two were interrupted: no first epoch tells how long these take to set up."""
    runs = [replace(BASE, epochs=4, seed=seed) for seed in range(14)]
    done = {run.id: 4 for run in runs[:3]} | {run.id: 2 for run in runs[3:5]}
    events = events_of(runs, workers, done, times)
    end = events[-1][0]
    display = Display(runs, workers, done)
    guesses = []
    for now, run, event in events:
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        display.listen(run, event)
        if event["kind"] == "epoch" and now < 0.8 * end:  # near the end, a worker's last seconds are all there is
            guesses.append(display.seconds_left() / (end - now))
    assert guesses
    assert min(guesses) >= 0.5, guesses
    assert max(guesses) <= 2, guesses
