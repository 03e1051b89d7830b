"""A run repeated from its stored settings, to see whether it gives the same numbers, bit for bit."""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewire.lab.results import Record, read_metrics
from rewire.lab.run import Run
from rewire.lab.training.train import train
from rewire.lab.training.trainer import Place, Report

COMPARED = ("loss", "accuracy", "test_loss", "nnz")  # of every epoch; seconds differ


def pick(records: Sequence[Record], key: str | None) -> Record:
    """The finished run whose id begins with ``key``, or one at random."""
    done = [one for one in records if one.result is not None]
    if key is None:
        return random.choice(done)
    chosen = [one for one in done if one.run.id.startswith(key)]
    if len(chosen) != 1:
        raise ValueError(f"{len(chosen)} finished runs have an id that begins with {key!r}: give more of its digits")
    return chosen[0]


def repeat(record: Record, place: Place, report: Report = lambda event: None) -> list[str]:
    """Train the run again in a folder of its own, and return every difference; none if all numbers are the same."""
    run = Run(**{name: value for name, value in record.run.to_dict().items() if name != "code"})
    with tempfile.TemporaryDirectory() as folder:
        result = train(run, Path(folder) / "run", place, report)
        metrics = read_metrics(Path(folder) / "run")
    return differences(record, metrics, result)


def differences(record: Record, metrics: Sequence[dict[str, Any]], result: dict[str, Any]) -> list[str]:
    """What differs between a stored run and a new one, as sentences."""
    assert record.result is not None
    found = []
    if len(metrics) != len(record.metrics):
        found.append(f"{len(metrics)} epochs instead of {len(record.metrics)}")
    for old, new in zip(record.metrics, metrics, strict=False):
        found += [
            f"{name} of epoch {old['epoch']} is {new.get(name)} instead of {old.get(name)}"
            for name in COMPARED
            if old.get(name) != new.get(name)
        ]
    found += [
        f"{name} is {result[name]} instead of {record.result[name]}"
        for name in ("accuracy", "loss", "nnz")
        if result[name] != record.result[name]
    ]
    return found
