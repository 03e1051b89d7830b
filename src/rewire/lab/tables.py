"""The paper's tables from what runs left on disk: records in, cells out. Nothing is trained, no result is held here.

A cell stands for runs that differ only in their seed. A seed below the failure line never enters a mean without a
mark, and a cell without a finished run stays empty.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean, stdev
from typing import Any

from rewire.lab.data import DATASETS
from rewire.lab.results import Record
from rewire.lab.run import DENSE, Run

EMPTY, FAILED = "·", "-"
GROWN = {"random": "GGR SET", "gradient": "GGR RigL", "mix": "GGR"}
BLOCKS = {"SET": "in place", "RigL": "in place", "SET+RigL": "in place"} | dict.fromkeys(GROWN.values(), "global")
ABLATION = ("SET+RigL", "GGR SET", "GGR RigL")  # what only Table 3 has
# How names are printed, and in which order.
DATA = {"cifar100": "CIFAR-100", "tiny-imagenet": "Tiny-ImageNet", "fashion-mnist": "Fashion-MNIST"}
NETWORKS = {"mobilenet-v2": "MobileNetV2", "resnet-18": "ResNet-18", "vgg16": "VGG16", "vgg-small": "VGG-small"}
METHODS = {DENSE: "Dense", "static": "Static", "gmp": "GMP", "granet": "GraNet", "deepr": "DeepR", "snfs": "SNFS"}
METHODS |= {"set": "SET", "rigl": "RigL", "set_rigl": "SET+RigL", "dsr": "DSR"} | {name: name for name in GROWN.values()}
STARTS = {"erk": "ERK", "uniform": "uni", "connected-erk": "conn. ERK", "connected-uniform": "conn. uni"}


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

    @property
    def shown(self) -> str:
        """The number with its spread and, where some seeds failed, how many of them."""
        mark = f" †{self.failed}/{self.failed + self.n}" if self.failed and self.n else ""
        return self.text + (f" ± {self.spread}" if self.spread else "") + mark


@dataclass(frozen=True)
class Row:
    """Cells after their headings; rows with equal ``heads[:-1]`` form a block."""

    heads: tuple[str, ...]
    cells: tuple[Cell, ...]

    @property
    def flat(self) -> list[Cell]:
        """One cell per column, for formats where a cell cannot span several."""
        return [cell for cell in self.cells for _ in range(cell.span)]


@dataclass(frozen=True)
class Table:
    """A table before it is printed; ``name`` serves as file name."""

    name: str
    title: str
    caption: str
    stubs: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]  # group and heading
    rows: tuple[Row, ...]

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Headings over the columns, each with the number of columns below it."""
        return [(name, len(list(below))) for name, below in groupby(group for group, _ in self.columns)]


@dataclass(frozen=True)
class Entry:
    """Runs that differ only in their seed: what a cell is made of."""

    data: str
    network: str
    method: str
    column: tuple[float, str]  # sparsity and start
    scope: str
    records: tuple[Record, ...]


# -- from records to entries -------------------------------------------------------------------------------------------


def failure_line(classes: int) -> float:
    """The accuracy below which a run failed: 5 %, or 1.5 times chance where classes are few.

    >>> failure_line(100), failure_line(10)
    (0.05, 0.15)
    """
    return max(0.05, 1.5 / classes)


def method_name(run: Run) -> str:
    """As the paper calls it: GGR that grows at random is ``GGR SET``, by the gradient alone ``GGR RigL``."""
    return GROWN[run.growth] if run.method == "ggr" else METHODS.get(run.method, run.method)


def distinct(records: Iterable[Record]) -> list[Record]:
    """Each training once, in the order of the paper: experiments share runs, and dense ones have no sparsity."""
    found: dict[Run, Record] = {}
    for record in sorted(records, key=lambda one: one.status != "done"):
        found.setdefault(_bare(record.run), record)
    return [found[run] for run in sorted(found, key=_order)]


def entries(records: Iterable[Record]) -> list[Entry]:
    """Runs gathered by what they compare; those that differ in another setting never share a cell."""
    once = distinct(records)
    alike: dict[Run, list[Run]] = defaultdict(list)
    for run in (_bare(record.run) for record in once):
        alike[Run(**{name: getattr(run, name) for name in _COMPARED})].append(run)
    apart: dict[tuple[str, str], set[str]] = defaultdict(set)
    for runs in alike.values():
        names = [name for name in runs[0].to_dict() if name != "seed" and len({getattr(r, name) for r in runs}) > 1]
        apart[runs[0].data, runs[0].model].update(names)
    found: dict[Entry, list[Record]] = defaultdict(list)
    for record in once:
        run = _bare(record.run)
        network = NETWORKS.get(run.model, run.model) + (f" x{run.width:g}" if run.width != 1 else "")
        told = sorted(apart[run.data, run.model] - {"width"})
        network += "".join(f", {name} {getattr(run, name)}" for name in told)
        data = DATA.get(run.data, run.data)
        found[Entry(data, network, method_name(run), (run.sparsity, run.start), run.scope, ())].append(record)
    return [replace(entry, records=tuple(group)) for entry, group in found.items()]


_COMPARED = ("data", "model", "method", "growth", "sparsity", "start", "scope")


def _bare(run: Run) -> Run:
    """The run without what it does not use."""
    if run.method == DENSE:
        unused = Run(data=run.data)
        run = replace(run, **{name: getattr(unused, name) for name in ("start", "scope", "fraction", "every", "until")})
        run = replace(run, sparsity=0.0)
    return run if run.method == "ggr" else replace(run, growth="mix")


def _order(run: Run) -> tuple[object, ...]:
    named = ((DATA, run.data), (NETWORKS, run.model), (METHODS, run.method), (STARTS, run.start))
    data, model, method, start = (list(names).index(name) if name in names else len(names) for names, name in named)
    growth = list(GROWN).index(run.growth)
    return data, model, run.width, method, growth, run.sparsity, start, run.scope, run.seed, run.id


# -- from entries to cells ---------------------------------------------------------------------------------------------


def accuracy(entry: Entry) -> Cell:
    """Top-1 accuracy on the test set in percent; failed seeds are left out and marked."""
    done = {record.run.seed: record.result for record in entry.records if record.result is not None}
    fits = {seed: result["accuracy"] >= failure_line(result["classes"]) for seed, result in done.items()}
    percent = {seed: 100 * float(result["accuracy"]) for seed, result in done.items()}
    good = {seed: value for seed, value in percent.items() if fits[seed]}
    bad = {seed: value for seed, value in percent.items() if not fits[seed]}
    return _cell(good, bad, len(entry.records) - len(done), "{:.2f}".format)


def measured(entry: Entry, measure: Callable[[list[dict[str, Any]]], float], number: Callable[[float], str]) -> Cell:
    """A number of the final layers, of failed seeds as well: the paper reports these for networks that do not learn."""
    done = {record.run.seed: measure(record.result["layers"]) for record in entry.records if record.result is not None}
    return _cell(done, {}, len(entry.records) - len(done), number)


def _cell(good: Mapping[int, float], bad: Mapping[int, float], left: int, number: Callable[[float], str]) -> Cell:
    def listed(values: Mapping[int, float]) -> str:
        return ", ".join(f"{number(value)} (seed {seed})" for seed, value in values.items())

    notes = [f"failed: {listed(bad)}"] * bool(bad) + [f"{left} not finished"] * bool(left)
    if not good:
        return Cell(FAILED if bad else EMPTY, failed=len(bad), note="; ".join(notes) or "no such run")
    values = tuple(good.values())
    mean, std = fmean(values), stdev(values) if len(values) > 1 else None
    spread = "" if std is None else number(std)
    notes.insert(0, f"mean {number(mean)}, std {spread or 'unknown'}, n = {len(values)}: {listed(good)}")
    note = "; ".join(notes)
    return Cell(number(mean), mean, std, len(values), values, tuple(good), len(bad), note=note, spread=spread)


def average(method: str, configurations: Mapping[str, Mapping[str, Cell]]) -> Cell:
    """The mean of a method over configurations, each given with the cells of all methods, by the paper's rule.

    What every method failed is left out for all; who failed what another fits gets no average, and neither does who
    has not finished one yet.
    """
    fit = {name: cells for name, cells in configurations.items() if any(cell.n for cell in cells.values())}
    mine = {name: cells.get(method, Cell(EMPTY)) for name, cells in configurations.items()}
    if failed := [name for name in fit if mine[name].text == FAILED]:
        return Cell(FAILED, failed=len(failed), note=f"failed where others did not: {'; '.join(failed)}")
    if absent := [name for name in mine if mine[name].text == EMPTY]:
        return Cell(EMPTY, note=f"no finished run: {'; '.join(absent)}")
    if not fit:
        return Cell(FAILED, failed=len(mine), note=f"every method failed: {'; '.join(mine)}")
    by_seed = [dict(zip(mine[name].seeds, mine[name].values, strict=True)) for name in fit]
    common = [seed for seed in by_seed[0] if all(seed in values for values in by_seed)]
    cell = _cell({seed: fmean(values[seed] for values in by_seed) for seed in common}, {}, 0, "{:.2f}".format)
    mean = fmean(fmean(mine[name].values) for name in fit)
    notes = [f"over {'; '.join(f'{name}: {mine[name].shown}' for name in fit)}"]
    notes += [f"left out, every method failed: {'; '.join(name for name in mine if name not in fit)}"] * (fit != mine)
    notes.insert(0, f"mean {mean:.2f}, std {cell.spread or 'unknown'}, n = {cell.n}")
    failures = sum(mine[name].failed for name in fit)
    return replace(cell, text=f"{mean:.2f}", mean=mean, failed=failures, note="; ".join(notes))


# -- from cells to tables ----------------------------------------------------------------------------------------------
