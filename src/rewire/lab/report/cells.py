"""The cells of tables: what the seeds of one configuration gave. Records in, numbers out; nothing is trained here.

A seed below the failure line never enters a mean without a mark, and a cell without a finished run stays empty.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from rewire.lab.report.groups import Entry

Heads = tuple[str, ...]
Read = Callable[[dict[str, Any]], float | None]  # a number of a result; None if the result does not have it

EMPTY, FAILED = "·", "-"


@dataclass(frozen=True)
class Cell:
    """What the seeds of one configuration gave, in the unit of its column."""

    text: str
    mean: float | None = None
    std: float | None = None  # of the sample (n - 1); None for a single seed
    n: int = 0  # seeds in the mean
    values: tuple[float, ...] = ()  # of these seeds
    seeds: tuple[int, ...] = ()
    failed: int = 0  # seeds below the failure line
    rank: int | None = None  # 1 to 3: the best of its block and column
    note: str = ""
    spread: str = ""  # the standard deviation as printed
    span: int = 1


@dataclass(frozen=True)
class Table:
    """A table before it is printed; ``name`` serves as file name."""

    name: str
    title: str
    caption: str
    stubs: Heads
    columns: tuple[tuple[str, str], ...] = ()  # group and heading
    rows: tuple[tuple[Heads, tuple[Cell, ...]], ...] = ()  # those with equal heads[:-1] form a block


def failure_line(classes: int) -> float:
    """The accuracy below which a run failed: 5 %, or 1.5 times chance where classes are few."""
    return max(0.05, 1.5 / classes)


def accuracy(entry: Entry) -> Cell:
    """Top-1 accuracy on the test set in percent; failed seeds are left out and marked."""
    done = {record.run.seed: record.result for record in entry.records if record.result is not None}
    bad = {seed for seed, result in done.items() if not result["accuracy"] >= failure_line(result["classes"])}
    value = {seed: 100 * result["accuracy"] for seed, result in done.items()}
    good = {seed: value[seed] for seed in done if seed not in bad}
    return cell_of(good, {seed: value[seed] for seed in done if seed in bad}, len(entry.records) - len(done), ".2f")


def average(method: str, configurations: Mapping[str, Mapping[str, Cell]]) -> Cell:
    """The mean of a method over configurations, each given with the cells of all methods, by the paper's rule.

    Configurations where every method failed are excluded. A method that fails where another succeeds gets no average,
    and neither does one with a configuration that is not finished. The deviation is that of the averages of the seeds
    that all configurations have.
    """
    fit = [name for name, cells in configurations.items() if any(cell.n for cell in cells.values())]
    mine = {name: cells.get(method, Cell(EMPTY)) for name, cells in configurations.items()}
    if failed := [name for name in fit if mine[name].text == FAILED]:
        return Cell(FAILED, failed=len(failed), note=f"fails where others succeed: {'; '.join(failed)}")
    if absent := [name for name in mine if mine[name].text == EMPTY]:
        return Cell(EMPTY, note=f"no finished run: {'; '.join(absent)}")
    if not fit:
        return Cell(FAILED, failed=len(mine), note=f"every method failed: {'; '.join(mine)}")
    seeds = [dict(zip(mine[name].seeds, mine[name].values, strict=True)) for name in fit]
    common = {
        seed: fmean(values[seed] for values in seeds) for seed in seeds[0] if all(seed in values for values in seeds)
    }
    cell, mean = cell_of(common, {}, 0, ".2f"), fmean(fmean(mine[name].values) for name in fit)
    n, failures = min(mine[name].n for name in fit), sum(mine[name].failed for name in fit)
    note = f"mean {mean:.2f}, std {cell.spread or 'unknown'}, n = {n} over "
    note += "; ".join(f"{name}: {mine[name].text}" for name in fit)
    note += "".join(f"; excluded, every finished method failed: {name}" for name in mine if name not in fit)
    return replace(cell, text=f"{mean:.2f}", mean=mean, n=n, failed=failures, note=note)


def measured(entry: Entry, form: str, read: Read) -> Cell:
    """What was measured of every finished seed, of networks that failed as well, as in the paper."""
    done = {record.run.seed: record.result for record in entry.records if record.result is not None}
    values = {seed: value for seed, result in done.items() if (value := read(result)) is not None}
    return cell_of(values, {}, len(entry.records) - len(done), form)


def cell_of(good: Mapping[int, float], bad: Mapping[int, float], left: int, form: str) -> Cell:
    """The cell of values by seed: those that count, those that failed, and how many runs are not finished."""
    listed = [", ".join(f"{value:{form}} (seed {seed})" for seed, value in values.items()) for values in (good, bad)]
    notes = [f"failed: {listed[1]}"] * bool(bad) + [f"{left} not finished"] * bool(left)
    if not good:
        return Cell(FAILED if bad else EMPTY, failed=len(bad), note="; ".join(notes) or NO_RUN.note)
    values = tuple(good.values())
    mean, std = fmean(values), stdev(values) if len(values) > 1 else None
    spread = "" if std is None else f"{std:{form}}"
    note = "; ".join([f"mean {mean:{form}}, std {spread or 'unknown'}, n = {len(values)}: {listed[0]}", *notes])
    return Cell(f"{mean:{form}}", mean, std, len(values), values, tuple(good), len(bad), note=note, spread=spread)


def usual_seeds(cells: Iterable[Cell]) -> int:
    """The number of seeds that most cells have: those with another one say so."""
    counts = Counter(cell.n for cell in cells if cell.n)
    return max(counts, key=lambda n: (counts[n], n), default=0)


NO_RUN = Cell(EMPTY, note="no such run")
