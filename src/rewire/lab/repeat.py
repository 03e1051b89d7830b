"""A run repeated from its stored settings, to see whether it gives the same numbers, bit for bit."""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewire.lab.environment import environment
from rewire.lab.results import Record, read_record
from rewire.lab.run import Run
from rewire.lab.training.train import train
from rewire.lab.training.trainer import Place, Report

COMPARED = ("loss", "losses", "accuracy", "test_loss", "nnz")  # of every epoch; seconds differ
SURROUNDINGS = ("torch", "cpu", "kernels", "threads")
OUTCOMES = ("accuracy", "loss", "nnz", "explored", "flops")  # of the run, beside all of every layer


def changed_surroundings(record: Record) -> list[str]:
    """What is different here from where the run was carried out, and may change its last digits, as sentences."""
    assert record.result is not None
    then, now = record.result["environment"], environment("cpu")
    return [
        f"{name} is {now[name]} instead of {then.get(name)}" for name in SURROUNDINGS if then.get(name) != now[name]
    ]


def pick(records: Sequence[Record], key: str | None) -> Record:
    """The finished run whose id begins with ``key``, or one at random."""
    done = {record.run.id: record for record in records if record.result is not None}  # experiments share runs
    if not done:
        raise ValueError("none of these runs is finished: there is nothing to repeat")
    chosen = [record for name, record in done.items() if name.startswith(key or "")]
    if key is None:
        return random.choice(chosen)
    if len(chosen) != 1:
        raise ValueError(f"{len(chosen)} finished runs have an id that begins with {key!r}: give more of its digits")
    return chosen[0]


def repeat(record: Record, place: Place, report: Report = lambda event: None) -> list[str]:
    """Train the run again in a folder of its own, and return every difference; none if all numbers are the same."""
    run = Run(**{name: value for name, value in record.run.to_dict().items() if name != "code"})
    with tempfile.TemporaryDirectory() as folder:
        train(run, Path(folder) / "run", place, report)
        again = read_record(Path(folder) / "run")  # as it was stored, where a loss that is not a number is none
    assert again.result is not None
    return differences(record, again.metrics, again.result)


def differences(record: Record, metrics: Sequence[dict[str, Any]], result: dict[str, Any]) -> list[str]:
    """What differs between a stored run and a new one, as sentences."""
    assert record.result is not None
    sentences = []
    if len(metrics) != len(record.metrics):
        sentences.append(f"{len(metrics)} epochs instead of {len(record.metrics)}")
    for old, new in zip(record.metrics, metrics, strict=False):
        sentences += [
            f"{name} of epoch {old['epoch']} is {new.get(name)} instead of {old.get(name)}"
            for name in COMPARED
            if old.get(name) != new.get(name)
        ]
    old_outcome, new_outcome = _outcome(record.result), _outcome(result)
    sentences += [
        f"{name} is {new_outcome.get(name)} instead of {old_outcome.get(name)}"
        for name in old_outcome | new_outcome
        if old_outcome.get(name) != new_outcome.get(name)
    ]
    return sentences


def _outcome(result: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a result, those of each layer under names of their own."""
    layers = {f"{key} of layer {layer['name']}": value for layer in result["layers"] for key, value in layer.items()}
    return {name: result.get(name) for name in OUTCOMES} | layers
