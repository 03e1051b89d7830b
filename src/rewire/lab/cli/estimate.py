"""How long a sweep will still take, from the epochs that were timed so far."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from heapq import heapify, heapreplace
from statistics import fmean

import torch

from rewire.analysis.flops import macs, positions
from rewire.lab.models.build import build
from rewire.lab.run import Run
from rewire.model.select import find_layers

STEP_OVERHEAD = 5e7  # what an optimizer step costs besides its multiply-adds, in multiply-adds
RECENT = 5  # epochs that count for the cost of the next one


class Estimate:
    """The time that is left, from the cost of an epoch of each kind of run.

    A run of a kind that was not timed yet (another method or store) is counted like others of its network, and one of
    another network by the multiply-adds of its epochs.
    """

    def __init__(self, runs: Sequence[Run], workers: int) -> None:
        self.runs, self.workers = list(runs), workers
        self._seconds: dict[tuple[object, ...], list[float]] = defaultdict(list)
        self._setups: list[float] = []
        self._first_setups: list[float] = []
        self._ends: list[float] = []

    def add_epoch(self, run: Run, seconds: float) -> None:
        """An epoch of a run took this long."""
        self._seconds[_kind(run)].append(seconds)

    def add_setup(self, seconds: float, *, first: bool = False) -> None:
        """Count the seconds from the start of a run to its first epoch; ``first``: its worker had just started."""
        (self._first_setups if first else self._setups).append(seconds)

    def add_end(self, seconds: float) -> None:
        """Count the seconds from the last epoch of a run to its end."""
        self._ends.append(seconds)

    def left(
        self, epochs: dict[str, int], running: Sequence[Run] = (), setting_up: Mapping[str, float] | None = None
    ) -> float | None:
        """Seconds until all runs are finished, given the epochs that each has done; ``None`` before the first epoch.

        Runs that are under way go on, and the others start in their order as workers become free. ``setting_up``: for
        how long those have been under way that have not reached an epoch yet.
        """
        if not self._seconds:
            return None
        # Of the first setups a part is paid once, for imports and caches. Half is within a factor of two if a quarter
        # recurs, and if all does.
        setups = self._setups or [seconds / 2 for seconds in self._first_setups]
        setup, end = (fmean(seconds) if seconds else 0.0 for seconds in (setups, self._ends))
        cost = {run.id: (run.epochs - epochs[run.id]) * self.epoch(run) + end for run in self.runs}
        for key, seconds in (setting_up or {}).items():
            cost[key] += max(setup - seconds, 0.0)
        begun = {run.id for run in running}
        free = [cost[run.id] for run in running][: self.workers]
        free += [0.0] * (self.workers - len(free))
        heapify(free)
        for run in self.runs:
            if run.id not in begun and epochs[run.id] < run.epochs:
                heapreplace(free, free[0] + setup + cost[run.id])
        return max(free)

    def epoch(self, run: Run) -> float:
        """Seconds of an epoch of a run."""
        if known := self._seconds.get(_kind(run)):
            return fmean(known[-RECENT:])
        same = [seconds for kind, times in self._seconds.items() if kind[0] == _network(run) for seconds in times]
        if same:
            return fmean(same)
        rates = [
            fmean(self._seconds[_kind(other)]) / _work(_network(other))
            for other in self.runs
            if _kind(other) in self._seconds
        ]
        return fmean(rates) * _work(_network(run))


def _network(run: Run) -> tuple[object, ...]:
    return run.data, run.model, run.width, run.limit, run.batch_size


def _kind(run: Run) -> tuple[object, ...]:
    return _network(run), run.method, run.growth, run.store, run.every, run.precision


@cache
def _work(network: tuple[object, ...]) -> float:
    """The cost of an epoch relative to that of other networks; 1 for networks and data of one's own."""
    data, model, width, limit, batch_size = network
    try:
        source = Run.from_dict({"data": data, "model": model}).entry("data")
        with torch.device("meta"):
            built = build(str(model), classes=source.classes, image=source.shape, width=float(str(width)))
            applied = positions(built, torch.zeros(1, *source.shape))
        sizes = {layer.spec.name: layer.spec.numel for layer in find_layers(built)[0]}
        images = min(source.train, int(str(limit)) if limit is not None else source.train)
    except (ValueError, AttributeError, RuntimeError, TypeError):
        return 1.0
    return float(images * (macs(sizes, applied) + STEP_OVERHEAD / int(str(batch_size))))
