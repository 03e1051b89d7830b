"""Questions to the runs of a study, answered with intervals: differences paired by seed, and what is left to run."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rewire.lab.references import is_reference
from rewire.lab.report.groups import without_unused
from rewire.lab.report.statistics import LEVEL, Interval, at_level, mean_interval
from rewire.lab.results import Record
from rewire.lab.run import Run

Cell = Mapping[str, Any]  # settings of the runs of one cell; only the seed is left open
Measure = Callable[[Record], float]
BySeed = dict[int, float]

ENOUGH_SEEDS = 3  # of every effect: a verdict is given while more are outstanding
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
    """A number with its 95 % interval over seeds; ``above`` is the bound that a claim asks it to exceed."""

    name: str
    interval: Interval
    unit: str = "points"
    above: float = 0.0

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

    def __init__(self, records: Iterable[Record], plan: Iterable[Run], data: str = "") -> None:
        self.data = data  # the data set that tables are about
        self.done = {without_unused(one.run): one for one in records if one.result is not None}
        self.plan = [without_unused(run) for run in plan]

    def runs(self, cell: Cell) -> list[Run]:
        """The planned runs of a cell."""
        return [run for run in self.plan if all(getattr(run, name) == value for name, value in cell.items())]

    def progress(self, cells: Iterable[Cell]) -> tuple[int, int]:
        """How many runs of some cells are done, and how many are planned."""
        runs = {run for cell in cells for run in self.runs(cell)}
        return sum(run in self.done for run in runs), len(runs)

    def values(self, cell: Cell, measure: Measure = accuracy) -> BySeed:
        """What was measured of the runs of a cell that are done, by seed; refuses a cell of several configurations."""
        values: BySeed = {}
        for run in self.runs(cell):
            if run in self.done:
                if run.seed in values:
                    raise ValueError(f"{dict(cell)} fits several runs of seed {run.seed}: name more of its settings")
                values[run.seed] = measure(self.done[run])
        return values

    def main_runs(self) -> dict[Run, Record]:
        """The finished runs on the main data set, with methods of the library."""
        return {run: one for run, one in self.done.items() if run.data == self.data and not is_reference(run.method)}

    def main_configurations(self) -> dict[Run, list[Record]]:
        """The same runs by configuration, which is given as its run of seed 0."""
        groups: dict[Run, list[Record]] = {}
        for run, record in self.main_runs().items():
            groups.setdefault(Run.from_dict(run.to_dict() | {"seed": 0}), []).append(record)
        return groups

    def cpus(self) -> list[str]:
        """The processors of the main runs, the one with most runs first."""
        return [cpu for cpu, _ in Counter(map(cpu_of, self.main_runs().values())).most_common()]


def difference(ours: BySeed, theirs: BySeed) -> BySeed:
    """Seed by seed, over the seeds that both have."""
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def mean_of(parts: Sequence[BySeed]) -> BySeed:
    """The mean of several values of each seed, over the seeds that all have."""
    common = set.intersection(*(set(part) for part in parts)) if parts else set()
    return {seed: fmean(part[seed] for part in parts) for seed in sorted(common)}


def effect(name: str, values: BySeed, unit: str = "points", above: float = 0.0) -> Effect | None:
    """The t interval over seeds; nothing without a value."""
    return Effect(name, mean_interval(list(values.values())), unit, above) if values else None


def regret(settings: Sequence[Mapping[str, BySeed]], name: str) -> BySeed:
    """How far a variant falls behind the best one of its setting, in the setting where that is worst; by seed."""
    by_seed: dict[int, list[float]] = {}
    seeds = set.intersection(*(set(values) for setting in settings for values in setting.values()))
    for seed in sorted(seeds):
        by_seed[seed] = [max(v[seed] for v in setting.values()) - setting[name][seed] for setting in settings]
    return {seed: max(gaps) for seed, gaps in by_seed.items()}


def answer(
    study: Study, cells: Sequence[Cell], effects: Sequence[Effect | None], details: Sequence[Effect | None] = ()
) -> Answer:
    """The verdict by the rule of all claims.

    Confirmed if every effect is above its bound, contradicted if any is below, at a level that allows for their number,
    and not confirmed otherwise; undecided while an effect has fewer seeds than planned and than ``ENOUGH_SEEDS``.
    """
    done, planned = study.progress(cells)
    known = [found for found in effects if found is not None]
    enough = done == planned or all(found.interval.n >= ENOUGH_SEEDS for found in known)
    if not planned or len(known) < len(effects) or not enough:
        verdict = UNDECIDED
    elif any(found.contradicts(len(known)) for found in known):
        verdict = CONTRADICTED
    else:
        verdict = CONFIRMED if all(found.confirms for found in known) else NOT_CONFIRMED
    return Answer(tuple(known), done, planned, verdict, tuple(one for one in details if one is not None))
