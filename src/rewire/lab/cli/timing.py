"""How long runs will take, from a few optimizer steps of each kind of run."""

import contextlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from rewire.lab.data.augment import steps_per_epoch
from rewire.lab.data.datasets import load
from rewire.lab.run import Run
from rewire.lab.training.trainer import Place, Trainer

STEPS = 4  # optimizer steps that are timed; the first is not counted
IMAGES = 500  # images whose evaluation is timed


def seconds_of(runs: Sequence[Run], place: Place) -> dict[str, float]:
    """Seconds of every run by its id, on this machine with the threads of this process.

    Runs of the same network, method, sparsity and store are timed once.
    """
    by_kind: dict[tuple[Any, ...], float] = {}
    sizes: dict[str, tuple[int, int]] = {}
    seconds = {}
    for run in runs:
        if run.data not in sizes:
            data = load(run.data, data_dir=place.data_dir, code=run.code_of("data"))
            sizes[run.data] = len(data.train_labels), len(data.test_labels)
        if (kind := _kind(run)) not in by_kind:
            by_kind[kind] = _seconds(run, place, *sizes[run.data])
        seconds[run.id] = by_kind[kind]
    return seconds


def _kind(run: Run) -> tuple[Any, ...]:
    network = run.data, run.model, run.width, run.limit, run.batch_size, run.epochs, run.evaluate_every
    return *network, run.method, run.sparsity, run.start, run.store, run.precision, run.optimizer


def _seconds(run: Run, place: Place, train: int, test: int) -> float:
    """The median time of a step times the steps, and the time of all evaluations."""
    train, test = (min(size, run.limit or size) for size in (train, test))
    trainer = Trainer(replace(run, limit=max(STEPS * run.batch_size, IMAGES)), place)
    ends = [time.perf_counter()]

    def note(event: dict[str, Any]) -> None:
        ends.append(time.perf_counter())
        if event["step"] > STEPS:
            raise StopIteration

    with contextlib.suppress(StopIteration):
        trainer.train_epoch(0, note)
    step = median(after - before for before, after in itertools.pairwise(ends))
    began = time.perf_counter()
    trainer.accuracy()
    evaluation = (time.perf_counter() - began) * test / len(trainer.data.test_labels)
    evaluations = -(-run.epochs // run.evaluate_every)
    return step * steps_per_epoch(train, run.batch_size) * run.epochs + evaluation * evaluations
