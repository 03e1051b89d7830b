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

from rewire.lab.data.datasets import DATASETS
from rewire.lab.report.groups import GROWN, METHODS, STARTS, Column, Entry, entries, place
from rewire.lab.results import Record
from rewire.lab.run import DENSE

Heads = tuple[str, ...]

EMPTY, FAILED = "·", "-"
BLOCKS = {"SET": "in place", "RigL": "in place", "SET+RigL": "in place"} | dict.fromkeys(GROWN.values(), "global")
ABLATION = ("SET+RigL", "GGR SET", "GGR RigL")  # what only Table 3 has
Measures = dict[str, tuple[str, Callable[[dict[str, Any]], float | None]]]  # heading: form, and how it is read
EMPTINESS: Measures = {
    "Empty neurons [%]": (".1f", lambda result: 100 * _sum(result, "empty_neurons") / _sum(result, "neurons")),
    "Empty inputs [%]": (".1f", lambda result: 100 * _sum(result, "empty_inputs") / _sum(result, "inputs")),
    "Params* [M]": (".3f", lambda result: _sum(result, "remaining") / 1e6),
}
COSTS: Measures = {  # None: results of an earlier version do not tell
    "Training": (".3f", lambda result: result["flops"].get("training_ratio")),
    "Inference": (".3f", lambda result: result["flops"]["ratio"]),
    "Explored [%]": (".1f", lambda result: 100 * n / result["weights"] if (n := result.get("explored")) else None),
}
_NAMES, _REFERENCE = [*METHODS.values(), *GROWN.values()], METHODS[DENSE]
_DENSE = (0.0, DENSE)  # the column of dense runs, which have none


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
    return _cell(good, {seed: value[seed] for seed in done if seed in bad}, len(entry.records) - len(done), ".2f")


def average(method: str, configurations: Mapping[str, Mapping[str, Cell]]) -> Cell:
    """The mean of a method over configurations, each given with the cells of all methods, by the paper's rule.

    What every method failed is left out for all; who failed what another fits gets no average, nor does who has not
    finished one yet. The deviation is that of the averages of the seeds that all configurations have.
    """
    fit = [name for name, cells in configurations.items() if any(cell.n for cell in cells.values())]
    mine = {name: cells.get(method, Cell(EMPTY)) for name, cells in configurations.items()}
    if failed := [name for name in fit if mine[name].text == FAILED]:
        return Cell(FAILED, failed=len(failed), note=f"failed what others fit: {'; '.join(failed)}")
    if absent := [name for name in mine if mine[name].text == EMPTY]:
        return Cell(EMPTY, note=f"no finished run: {'; '.join(absent)}")
    if not fit:
        return Cell(FAILED, failed=len(mine), note=f"every method failed: {'; '.join(mine)}")
    seeds = [dict(zip(mine[name].seeds, mine[name].values, strict=True)) for name in fit]
    common = {seed: fmean(one[seed] for one in seeds) for seed in seeds[0] if all(seed in one for one in seeds)}
    cell, mean = _cell(common, {}, 0, ".2f"), fmean(fmean(mine[name].values) for name in fit)
    n, failures = min(mine[name].n for name in fit), sum(mine[name].failed for name in fit)
    note = f"mean {mean:.2f}, std {cell.spread or 'unknown'}, n = {n} over "
    note += "; ".join(f"{name}: {mine[name].text}" for name in fit)
    note += "".join(f"; left out, every finished method failed: {name}" for name in mine if name not in fit)
    return replace(cell, text=f"{mean:.2f}", mean=mean, n=n, failed=failures, note=note)


def table1(records: Iterable[Record]) -> list[Table]:
    """Accuracy by network and method, sparsity and start; one table per data set."""
    about = "Top-1 accuracy in percent on the test set of {} after the last epoch, by sparsity s and start."
    return _grids("table1", "Table 1: accuracy on {}", about, _compared(records), lambda entry: entry.method)


def table2(records: Iterable[Record]) -> list[Table]:
    """Accuracy by method, averaged over networks and data sets."""
    return _averages("table2", "Table 2: average accuracy", ("Method",), _compared(records))


def table3(records: Iterable[Record]) -> list[Table]:
    """The ablation: growth at random, by gradients and by both, in place and with GGR's distribution."""
    used = [entry for entry in entries(records) if entry.scope == "layer" and entry.method in BLOCKS]
    places = {(entry.data, entry.network) for entry in used if entry.method in ABLATION}
    shown = [entry for entry in used if (entry.data, entry.network) in places]
    return _averages("table3", "Table 3: ablation, average accuracy", ("Distribution", "Method"), shown)


def table4(records: Iterable[Record]) -> list[Table]:
    """Accuracy, empty neurons and inputs, and parameters left without them; one table per data set and sparsity."""
    about = "Empty neurons and inputs (channels of convolutions) after training on {} at s={:g}, of failed runs as "
    about += "well. *Dense parameters that remain when both are removed."
    return _measured("table4", "Table 4: empty neurons and inputs on {}, s={:g}", about, EMPTINESS, records)


def table_costs(records: Iterable[Record]) -> list[Table]:
    """Accuracy and multiply-adds of training and inference against dense; one table per data set and sparsity."""
    about = "Multiply-adds on {} at s={:g} against dense, counted as in RigL's paper along the densities that layers "
    about += "really had, of failed runs as well; and the share of all positions that were ever active."
    return _measured("costs", "Cost on {}, s={:g}", about, COSTS, records)


def table_drop(records: Iterable[Record]) -> list[Table]:
    """The weakest weights removed layer by layer against network-wide; one table per data set."""
    found = entries(records)
    both = {(e.data, e.network, e.method, e.column) for e in found if e.scope == "network"}
    used = [e for e in found if (e.data, e.network, e.method, e.column) in both]
    about = "Top-1 accuracy in percent on the test set of {}: weakest weights removed from each layer or from all."
    return _grids("drop", "Local against global removal on {}", about, used, lambda e: f"{e.method}, by {e.scope}")


def tables(records: Sequence[Record]) -> list[Table]:
    """Every table that these records have something for."""
    makers = (table1, table2, table3, table4, table_drop, table_costs)
    made = [table for make in makers for table in make(records)]
    return [table for table in made if any(cell.text != EMPTY for _, cells in table.rows for cell in cells)]


def _grids(name: str, title: str, about: str, used: list[Entry], label: Callable[[Entry], str]) -> list[Table]:
    """Networks and methods down, sparsities and starts across, for each data set."""
    made = []
    for data, group in groupby(used, lambda entry: entry.data):
        rows: dict[Heads, dict[Column, Cell]] = defaultdict(dict)
        for entry in (own := list(group)):
            rows[entry.network, label(entry)][entry.column] = accuracy(entry)
        table = Table(f"{name}-{data.lower()}", title.format(data), about.format(data), ("Network", "Method"))
        made.append(_by_column(table, own, rows))
    return made


def _averages(name: str, title: str, stubs: Heads, used: list[Entry]) -> list[Table]:
    """Methods down, sparsities and starts across, averaged over all else."""
    found: dict[Column, dict[str, dict[str, Cell]]] = defaultdict(lambda: defaultdict(dict))
    for entry in used:
        pair = f"{entry.network} on {entry.data}"
        found[entry.column][pair][entry.method] = accuracy(entry)
        found[_DENSE].setdefault(pair, {})  # a dense reference that lacks a network would not be comparable
    about = f"Top-1 accuracy in percent, averaged over every network on every data set ({len(found[_DENSE])}). "
    about += "What every method failed is left out; a method that failed what another fits has no average."
    rows: dict[Heads, dict[Column, Cell]] = {}
    for method in sorted({entry.method for entry in used}, key=lambda one: place(one, _NAMES)):
        own = [column for column in found if (column == _DENSE) == (method == _REFERENCE)]
        rows[(BLOCKS.get(method, ""), method)[-len(stubs) :]] = {one: average(method, found[one]) for one in own}
    return [_by_column(Table(name, title, about, stubs), used, rows)] if used else []


def _measured(name: str, title: str, about: str, measures: Measures, records: Iterable[Record]) -> list[Table]:
    """Networks and methods down, accuracy, measures and starts across, for each data set and sparsity."""
    groups: dict[tuple[str, float], list[Entry]] = defaultdict(list)
    for entry in _compared(records):
        if entry.method != _REFERENCE:
            groups[entry.data, entry.column[0]].append(entry)
    made = []
    for key, used in groups.items():
        starts = sorted({entry.column[1] for entry in used}, key=lambda start: place(start, STARTS))
        rows: dict[Heads, list[Cell]] = {
            (e.network, e.method): [_NONE] * len(starts) * (1 + len(measures)) for e in used
        }
        for entry in used:
            cells = [accuracy(entry), *(_measure(entry, *measure) for measure in measures.values())]
            rows[entry.network, entry.method][starts.index(entry.column[1]) :: len(starts)] = cells
        columns = [(group, STARTS.get(start, start)) for group in ("Top-1 acc. [%]", *measures) for start in starts]
        table = Table(
            f"{name}-{key[0].lower()}-{key[1]:g}", title.format(*key), about.format(*key), ("Network", "Method")
        )
        made.append(_finished(replace(table, columns=tuple(columns)), used, rows, len(starts)))
    return made


def _measure(entry: Entry, form: str, read: Callable[[dict[str, Any]], float | None]) -> Cell:
    """What was measured of every finished seed, of networks that failed as well, as in the paper."""
    done = {one.run.seed: one.result for one in entry.records if one.result is not None}
    values = {seed: value for seed, result in done.items() if (value := read(result)) is not None}
    return _cell(values, {}, len(entry.records) - len(done), form)


def _by_column(table: Table, used: list[Entry], rows: Mapping[Heads, Mapping[Column, Cell]]) -> Table:
    """The table with its columns, sparsity by sparsity; Dense has one cell across all of them."""
    found = {column for row in rows.values() for column in row} - {_DENSE}
    columns = sorted(found, key=lambda column: (column[0], place(column[1], STARTS))) or [_DENSE]
    across = {heads: [row.get(column, _NONE) for column in columns] for heads, row in rows.items()}
    across |= {heads: [replace(row[_DENSE], span=len(columns))] for heads, row in rows.items() if _DENSE in row}
    headings = tuple((f"s={sparsity:g}", STARTS.get(start, start)) for sparsity, start in columns)
    return _finished(replace(table, columns=headings), used, across, len(columns))


def _finished(table: Table, used: list[Entry], rows: Mapping[Heads, Sequence[Cell]], ranked: int) -> Table:
    """The table with its rows, the best of its first columns ranked, and a caption that counts what is missing."""
    cells = [cell for row in rows.values() for cell in row]
    runs, seeds = [one for entry in used for one in entry.records], sorted({len(entry.records) for entry in used})
    left, empty = sum(one.result is None for one in runs), sum(cell.text == EMPTY for cell in cells)
    lines = sorted({100 * failure_line(DATASETS[one.run.data].classes) for one in runs})
    several = f"Mean ± standard deviation over {' to '.join(map(str, seeds[:: len(seeds) - 1 or 1]))} seeds."
    caption = [table.caption, several if seeds[-1] > 1 else "One seed: no spread is known."]
    failures = f"{FAILED} failed: below {' or '.join(f'{line:g} %' for line in lines)} accuracy."
    caption += [failures] * any(cell.failed for cell in cells)
    caption += ["† failed seeds, left out of the mean."] * any(cell.failed and cell.n for cell in cells)
    caption += [f"{EMPTY} no finished run: {empty} of {len(cells)} cells."] * bool(empty)
    caption += [f"{left} of {len(runs)} runs are not finished."] * bool(left)
    made = [(heads, tuple(_ranked(heads, i, rows, ranked) for i in range(len(row)))) for heads, row in rows.items()]
    return replace(table, caption=" ".join(caption), rows=tuple(made))


def _ranked(heads: Heads, i: int, rows: Mapping[Heads, Sequence[Cell]], ranked: int) -> Cell:
    """A cell with its rank in its block and column, by the number as printed; a mean over survivors has none."""
    cell: Cell = rows[heads][i]
    if i >= ranked or heads[-1] == _REFERENCE or not cell.n or cell.failed:
        return cell
    block = [row[i] for other, row in rows.items() if other[:-1] == heads[:-1] and other[-1] != _REFERENCE]
    rank = 1 + sum(float(rival.text) > float(cell.text) for rival in block if rival.n and not rival.failed)
    return replace(cell, rank=rank if rank <= 3 else None)


def _cell(good: Mapping[int, float], bad: Mapping[int, float], left: int, form: str) -> Cell:
    """The cell of values by seed: those that count, those that failed, and how many there are not yet."""
    listed = [", ".join(f"{value:{form}} (seed {seed})" for seed, value in values.items()) for values in (good, bad)]
    notes = [f"failed: {listed[1]}"] * bool(bad) + [f"{left} not finished"] * bool(left)
    if not good:
        return Cell(FAILED if bad else EMPTY, failed=len(bad), note="; ".join(notes) or _NONE.note)
    values = tuple(good.values())
    mean, std = fmean(values), stdev(values) if len(values) > 1 else None
    spread = "" if std is None else f"{std:{form}}"
    note = "; ".join([f"mean {mean:{form}}, std {spread or 'unknown'}, n = {len(values)}: {listed[0]}", *notes])
    return Cell(f"{mean:{form}}", mean, std, len(values), values, tuple(good), len(bad), note=note, spread=spread)


def _compared(records: Iterable[Record]) -> list[Entry]:
    return [entry for entry in entries(records) if entry.scope == "layer" and entry.method not in ABLATION]


def _sum(result: dict[str, Any], name: str) -> int:
    return sum(int(layer[name]) for layer in result["layers"])


_NONE = Cell(EMPTY, note="no such run")
