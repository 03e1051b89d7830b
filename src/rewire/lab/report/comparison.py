"""Tables of any grid of runs: some settings down, others across, with intervals; and differences seed by seed."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace

from rewire._lookup import choose
from rewire.lab.labels import describe
from rewire.lab.names import DENSE_LOOK
from rewire.lab.report.cells import EMPTY, FAILED, NO_RUN, Cell, Table, cell_of, failure_line
from rewire.lab.report.groups import SPARSE_ONLY, distinct, method_name, setting, without_unused
from rewire.lab.report.looks import label_of, method_position, start_position
from rewire.lab.report.statistics import ENOUGH_SEEDS, mean_interval, paired_difference
from rewire.lab.results import Record
from rewire.lab.run import Run
from rewire.parts.start import start_label

SETTINGS = [field.name for field in fields(Run) if field.name not in ("seed", "code")]
_WITH_METHOD = {"growth", "code"}  # what a method's label tells, or what goes with it
_ACROSS = ("sparsity", "start")  # columns rather than rows, unless they are asked for
Key = tuple[str, ...]


@dataclass(frozen=True)
class Arrangement:
    """Which settings distinguish the rows and the columns, and the row that the others are compared with.

    Without a choice, methods are down, and the other settings that vary are across.
    """

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    baseline: str | None = None

    @classmethod
    def parse(cls, rows: str | None, columns: str | None, baseline: str | None) -> "Arrangement":
        """From what was typed: names separated by commas."""
        parsed = [tuple(name.strip() for name in (text or "").split(",") if name.strip()) for text in (rows, columns)]
        for name in (*parsed[0], *parsed[1]):
            choose("setting", name, dict.fromkeys(SETTINGS))
        if twice := set(parsed[0]) & set(parsed[1]):
            raise ValueError(f"{', '.join(twice)} cannot be in --rows and in --columns: leave it out of one of them")
        return cls(parsed[0], parsed[1], baseline)

    @property
    def is_chosen(self) -> bool:
        """Whether anything was asked for."""
        return bool(self.rows or self.columns or self.baseline)


def comparison_tables(records: Iterable[Record], arrangement: Arrangement) -> list[Table]:
    """For every combination of the settings that are neither rows nor columns: a table, and one of differences."""
    bare = {without_unused(record.run): record for record in distinct(records)}
    rows, columns, others = _divide(list(bare), arrangement)
    groups: dict[Key, dict[Run, Record]] = defaultdict(dict)
    for run, record in bare.items():
        groups[tuple(_words(run, name) for name in others)][run] = record
    tables = []
    for number, (key, members) in enumerate(groups.items()):
        values = _values(members, rows, columns)
        where = ", ".join(key)
        suffix = f"-{number + 1}" if len(groups) > 1 else ""
        tables.append(_means(values, rows, columns, where, suffix))
        tables += _differences(values, rows, columns, where, suffix, arrangement.baseline)
    return tables


def differences(records: Iterable[Record]) -> list[Table]:
    """Only the differences, in the arrangement of the paper's tables, where there are several seeds."""
    tables = comparison_tables(records, Arrangement())
    seeds = {record.run.seed for record in records}
    return [table for table in tables if table.name.startswith("differences")] if len(seeds) > 1 else []


def _divide(runs: Sequence[Run], arrangement: Arrangement) -> tuple[list[str], list[str], list[str]]:
    """The settings down, across, and those left over that vary."""
    sparse = [run for run in runs if not run.is_dense]
    varied = [
        name for name in SETTINGS if len({getattr(run, name) for run in (sparse if name in SPARSE_ONLY else runs)}) > 1
    ]
    rows, columns = list(arrangement.rows), list(arrangement.columns)
    if not rows:
        rows = ["method"] if "method" not in columns else [name for name in varied if name not in columns][:1]
    named = {*rows, *columns} | (_WITH_METHOD if "method" in rows + columns else set())
    if not columns:
        columns = [name for name in _ACROSS if name in varied and name not in named]
        columns += [name for name in varied if name not in {*named, *columns, "data", "model", "width"}]
    others = [name for name in varied if name not in {*named, *columns}]
    return rows, columns, others


@dataclass
class Outcomes:
    """The accuracies of one configuration by seed, those of failed runs apart, and how many runs are not finished."""

    good: dict[int, float] = field(default_factory=dict)
    failed: dict[int, float] = field(default_factory=dict)
    unfinished: int = 0


Values = dict[Key, dict[Key, Outcomes]]  # by row and column


def _values(members: dict[Run, Record], rows: Sequence[str], columns: Sequence[str]) -> Values:
    values: Values = defaultdict(dict)
    for run, record in sorted(members.items(), key=lambda item: _order(item[0], rows)):
        row = tuple(_words(run, name) for name in rows)
        column = tuple(_words(run, name) for name in columns if not (run.is_dense and name in SPARSE_ONLY))
        outcomes = values[row].setdefault(column, Outcomes())
        if record.result is None:
            outcomes.unfinished += 1
            continue
        accuracy = record.result["accuracy"]
        passed = accuracy >= failure_line(record.result["classes"])
        (outcomes.good if passed else outcomes.failed)[run.seed] = 100 * accuracy
    return values


def _order(run: Run, rows: Sequence[str]) -> tuple[object, ...]:
    keys: list[object] = []
    for name in rows:
        value = getattr(run, name)
        keys.append(method_position(method_name(run)) if name == "method" else (value is not None, value))
    return *keys, run.sparsity, start_position(run.start), run.seed


def _columns(values: Values) -> list[Key]:
    """All columns; those of dense runs, which have no sparsity, stand first."""
    keys = dict.fromkeys(column for row in values.values() for column in row)
    return sorted(keys, key=lambda key: (len(key), [_number(word) for word in key]))


def _number(word: str) -> tuple[float, str]:
    try:
        return float(word.rstrip("%").rpartition(" ")[2]), word
    except ValueError:
        return math.inf, word


def _means(values: Values, rows: Sequence[str], columns: Sequence[str], where: str, suffix: str) -> Table:
    keys = _columns(values)
    cells = tuple((row, tuple(_mean_cell(by_column.get(key)) for key in keys)) for row, by_column in values.items())
    caption = "Top-1 accuracy in percent on the test set after the last epoch: mean ± half of its 95 % interval (t)."
    return _table(f"grid{suffix}", "Accuracy", caption, where, rows, keys, cells)


def _differences(
    values: Values, rows: Sequence[str], columns: Sequence[str], where: str, suffix: str, baseline: str | None
) -> list[Table]:
    """Each row minus the baseline's, seed by seed."""
    labels = {" ".join(row): row for row in values}
    typed = {label.lower(): row for label, row in labels.items()}
    rivals = [row for row in values if DENSE_LOOK.label not in row]
    first = rivals[0] if rivals else None
    reference = first if baseline is None else choose("baseline", baseline.lower(), typed)
    others = [row for row in values if row != reference]
    if reference is None or not others:
        return []
    # Dense runs have no sparsity: where the reference has no run, finished or not, there is nothing to compare.
    keys = [key for key in _columns(values) if key in values[reference]]
    others = [row for row in others if any(key in values[row] for key in keys)]
    if not others:
        return []
    cells = []
    for row in others:
        cells.append((row, tuple(_difference_cell(values[row].get(key), values[reference].get(key)) for key in keys)))
    name = " ".join(reference)
    caption = (
        f"Accuracy minus that of {name}, in percentage points, seed by seed: mean ± half of its 95 % interval (t). "
        f"* The interval excludes zero, over {ENOUGH_SEEDS} seeds or more; one in twenty does by chance."
    )
    return [_table(f"differences{suffix}", f"Difference from {name}", caption, where, rows, keys, tuple(cells))]


def _table(
    name: str,
    title: str,
    caption: str,
    where: str,
    rows: Sequence[str],
    keys: Sequence[Key],
    cells: tuple[tuple[Key, tuple[Cell, ...]], ...],
) -> Table:
    headings = tuple((key[0] if len(key) > 1 else "", " ".join(key[1:] or key) or "all") for key in keys)
    stubs = tuple(row.replace("_", " ").capitalize() for row in rows)
    several = any(cell.failed for _, row in cells for cell in row)
    notes = [f"{FAILED} failed, † failed seeds are excluded."] * several
    empty = any(cell.text == EMPTY for _, row in cells for cell in row)
    notes += [f"{EMPTY} no finished run."] * empty
    return Table(name, f"{title}, {where}" if where else title, " ".join([caption, *notes]), stubs, headings, cells)


def _mean_cell(outcomes: Outcomes | None) -> Cell:
    if outcomes is None:
        return NO_RUN
    cell = cell_of(outcomes.good, outcomes.failed, outcomes.unfinished, ".2f")
    interval = mean_interval(cell.values) if cell.n > 1 else None
    return replace(cell, spread=f"{interval.half_width:.2f}") if interval is not None else cell


def _difference_cell(ours: Outcomes | None, theirs: Outcomes | None) -> Cell:
    """The difference over the seeds that succeeded in both; seeds that failed in either are counted."""
    if ours is None or theirs is None:
        return NO_RUN
    failed = len((ours.failed.keys() & (theirs.good | theirs.failed)) | (theirs.failed.keys() & ours.good))
    interval = paired_difference(ours.good, theirs.good)
    if interval is None:
        note = "every seed that both have finished failed in one" if failed else "no seed that both have finished"
        return Cell(FAILED if failed else EMPTY, failed=failed, note=note)
    clear = interval.excludes_zero and interval.has_width and interval.n >= ENOUGH_SEEDS and not failed
    note = f"mean {interval.mean:+.2f}, 95 % interval {interval.low:+.2f} to {interval.high:+.2f}, n = {interval.n}"
    spread = f"{interval.half_width:.2f}{'*' * clear}" if interval.has_width else ""
    return Cell(f"{interval.mean:+.2f}", interval.mean, None, interval.n, failed=failed, note=note, spread=spread)


def _words(run: Run, name: str) -> str:
    """A setting as tables call it."""
    if name == "method":
        return method_name(run)
    if name in ("data", "model"):
        return label_of(name, getattr(run, name))
    if name == "start":
        return start_label(run.start)
    if name == "sparsity":
        return f"{100 * run.sparsity:g}%"
    return describe(run, name) or f"{name} {setting(run, name)}"
