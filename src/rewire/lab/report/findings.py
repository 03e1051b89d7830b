"""Questions to the runs of a study, answered with intervals: differences paired by seed, and what is left to run."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from rewire.lab.references import is_reference
from rewire.lab.report.groups import without_unused
from rewire.lab.report.statistics import ENOUGH_SEEDS, LEVEL, Interval, at_level, mean_interval
from rewire.lab.results import Record
from rewire.lab.run import Run

Cell = Mapping[str, Any]  # settings of the runs of one cell; only the seed is left open
Measure = Callable[[Record], float | None]  # None: the run does not have it
BySeed = dict[int, float]

POINTS = "points"  # of accuracy
FEWEST_SEEDS = 2  # of every effect, if no more are planned: one seed has no interval
TABULATED = ("model", "width", "method", "sparsity", "start", "growth", "scope", "store", "seed")  # what tables vary
CONFIRMED, NOT_CONFIRMED, CONTRADICTED, UNDECIDED = "confirmed", "not confirmed", "contradicted", "undecided"


def accuracy(record: Record) -> float:
    """Top-1 accuracy on the test set in percent; networks that did not learn count with what they reached."""
    assert record.result is not None
    return 100 * float(record.result["accuracy"])


def cpu_seconds(record: Record) -> float:
    """Seconds that a run took of one core."""
    return sum(float(line.get("cpu_seconds", line["seconds"])) for line in record.metrics)


def seconds_on(cpu: str, records: Iterable[Record]) -> list[float]:
    """The seconds of the runs that one processor carried out."""
    return [cpu_seconds(record) for record in records if cpu_of(record) == cpu]


def cpu_of(record: Record) -> str:
    """The processor that a run was carried out on: seconds are compared on one processor only."""
    assert record.result is not None
    return str(record.result["environment"]["cpu"])


@dataclass(frozen=True)
class Effect:
    """A number with its 95 % interval over seeds; ``above`` is the bound that a claim asks it to exceed.

    It is written with a sign where it is a difference. ``note`` says more of it beside the verdict.
    """

    name: str
    interval: Interval
    unit: str = POINTS
    above: float = 0.0
    signed: bool = True
    note: str = ""

    @property
    def confirms(self) -> bool:
        """Whether the whole interval is above the bound."""
        return self.interval.low > self.above

    def contradicts(self, count: int) -> bool:
        """Whether the interval is below the bound, at the level that allows for ``count`` effects."""
        return at_level(self.interval, 1 - (1 - LEVEL) / count).high < self.above


@dataclass(frozen=True)
class Answer:
    """Effects, how many of the runs behind them are done, and the verdict."""

    effects: tuple[Effect, ...]
    done: int
    planned: int
    verdict: str
    details: tuple[Effect, ...] = ()  # parts of the effects, which the verdict does not depend on


class Study:
    """The runs that are planned, and those of them that are done."""

    def __init__(self, records: Iterable[Record], plan: Iterable[Run], recipe: Run | None = None) -> None:
        """``recipe``: a run with the settings that all runs in tables share; by default the first sparse one."""
        self.done = {without_unused(record.run): record for record in records if record.result is not None}
        self.plan = [without_unused(run) for run in plan]
        self._recipe = recipe or next((run for run in self.plan if not run.is_dense), None)

    def runs(self, cell: Cell) -> list[Run]:
        """The planned runs of a cell."""
        return [run for run in self.plan if all(getattr(run, name) == value for name, value in cell.items())]

    def progress(self, cells: Iterable[Cell]) -> tuple[int, int]:
        """How many runs of some cells are done, and how many are planned."""
        runs = {run for cell in cells for run in self.runs(cell)}
        return sum(run in self.done for run in runs), len(runs)

    def values(self, cell: Cell, measure: Measure = accuracy) -> BySeed:
        """What was measured of the runs of a cell that are done, by seed; refuses a cell of several configurations."""
        runs = [run for run in self.runs(cell) if run in self.done]
        if repeated := [seed for seed, count in Counter(run.seed for run in runs).items() if count > 1]:
            raise ValueError(f"{dict(cell)} fits several runs of seed {repeated[0]}: name more of its settings")
        values = {run.seed: measure(self.done[run]) for run in runs}
        return {seed: value for seed, value in values.items() if value is not None}

    @cached_property
    def main_runs(self) -> dict[Run, Record]:
        """The finished runs with methods of the library and the study's recipe.

        Runs with other data, another number of epochs or another time between rewirings are not comparable with them.
        """
        return {run: record for run, record in self.done.items() if self._has_recipe(run)}

    def _has_recipe(self, run: Run) -> bool:
        if self._recipe is None or is_reference(run.method):
            return False
        varied = {name: getattr(run, name) for name in TABULATED}
        return run == without_unused(Run.from_dict(self._recipe.to_dict() | varied))

    def compared_runs(self) -> dict[Run, Record]:
        """The main runs, each once: of those that were carried out in both stores, the packed one."""
        runs = self.main_runs
        packed = {_in_store(run, Run.store) for run in runs if run.store != Run.store}
        return {run: record for run, record in runs.items() if run.store != Run.store or run not in packed}

    def main_configurations(self) -> dict[Run, list[Record]]:
        """The same runs by configuration, which is given as its run of seed 0."""
        groups: dict[Run, list[Record]] = {}
        for run, record in self.main_runs.items():
            groups.setdefault(Run.from_dict(run.to_dict() | {"seed": 0}), []).append(record)
        return groups

    def cpus(self) -> list[str]:
        """The processors of the main runs, the one with most runs first."""
        return [cpu for cpu, _ in Counter(map(cpu_of, self.main_runs.values())).most_common()]


def _in_store(run: Run, store: str) -> Run:
    return Run.from_dict(run.to_dict() | {"store": store})


def difference(ours: BySeed, theirs: BySeed) -> BySeed:
    """Seed by seed, over the seeds that both have."""
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def mean_of(parts: Sequence[BySeed]) -> BySeed:
    """The mean of several values of each seed, over the seeds that all have."""
    common = set.intersection(*(set(part) for part in parts)) if parts else set()
    return {seed: fmean(part[seed] for part in parts) for seed in sorted(common)}


def effect(
    name: str, values: BySeed, unit: str = POINTS, above: float = 0.0, *, signed: bool = True, note: str = ""
) -> Effect | None:
    """The t interval over seeds; nothing without a value."""
    return Effect(name, mean_interval(list(values.values())), unit, above, signed, note) if values else None


def answer(
    study: Study, cells: Sequence[Cell], effects: Sequence[Effect | None], details: Sequence[Effect | None] = ()
) -> Answer:
    """The verdict by the rule of all claims.

    Confirmed if every effect is above its bound, contradicted if any is below, at a level that allows for their number,
    and not confirmed otherwise; undecided until every effect has ``ENOUGH_SEEDS`` seeds, or all that are planned if
    those are fewer, but at least ``FEWEST_SEEDS``.
    """
    done, planned = study.progress(cells)
    known = [effect for effect in effects if effect is not None]
    needed = FEWEST_SEEDS if done == planned else ENOUGH_SEEDS
    enough = all(effect.interval.n >= needed for effect in known)
    if not planned or len(known) < len(effects) or not enough:
        verdict = UNDECIDED
    elif any(effect.contradicts(len(known)) for effect in known):
        verdict = CONTRADICTED
    else:
        verdict = CONFIRMED if all(effect.confirms for effect in known) else NOT_CONFIRMED
    return Answer(tuple(known), done, planned, verdict, tuple(detail for detail in details if detail is not None))
