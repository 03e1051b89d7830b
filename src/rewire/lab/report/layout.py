"""How tables arrange cells: networks and methods down, sparsities and starts across."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import prod

from rewire.lab.models.registry import MODELS
from rewire.lab.names import DENSE_LOOK
from rewire.lab.report.cells import (
    EMPTY,
    FAILED,
    NO_RUN,
    Cell,
    Heads,
    Read,
    Table,
    accuracy,
    average,
    failure_line,
    usual_seeds,
)
from rewire.lab.report.cells import measured as measured_cell
from rewire.lab.report.groups import Column, Entry, entries
from rewire.lab.report.looks import method_position, start_position
from rewire.lab.results import Record
from rewire.lab.run import DENSE
from rewire.parts.start import start_label

Measures = dict[str, tuple[str, Read]]  # heading: number format, and how the number is read
DENSE_COLUMN = (0.0, DENSE)  # the column of dense runs, which have neither sparsity nor start


def compared(records: Iterable[Record], without: Iterable[str] = ()) -> list[Entry]:
    """What tables compare: weights dropped by layer, and methods other than those left out."""
    return [entry for entry in entries(records) if entry.scope == "layer" and entry.method not in set(without)]


def accuracy_grids(name: str, title: str, about: str, used: list[Entry], label: Callable[[Entry], str]) -> list[Table]:
    """Networks and methods down, sparsities and starts across, for each data set."""
    tables = []
    for data, group in groupby(used, lambda entry: entry.data):
        rows: dict[Heads, dict[Column, Cell]] = defaultdict(dict)
        for entry in (own := list(group)):
            rows[entry.network, label(entry)][entry.column] = accuracy(entry)
        table = Table(f"{name}-{data.lower()}", title.format(data), about.format(data), ("Network", "Method"))
        tables.append(_by_column(table, own, rows))
    return tables


def averages(name: str, title: str, stubs: Heads, used: list[Entry], blocks: Mapping[str, str]) -> list[Table]:
    """Methods down, sparsities and starts across, averaged over all else."""
    cells: dict[Column, dict[str, dict[str, Cell]]] = defaultdict(lambda: defaultdict(dict))
    for entry in used:
        pair = f"{entry.network} on {entry.data}"
        cells[entry.column][pair][entry.method] = accuracy(entry)
        cells[DENSE_COLUMN].setdefault(pair, {})  # the dense average must cover every network
    pairs = cells[DENSE_COLUMN]
    about = f"Top-1 accuracy in percent, averaged over every network on every data set ({len(pairs)}: "
    about += f"{'; '.join(pairs)}). "
    about += "Cells where every method failed are excluded; a method that fails where another succeeds gets no average."
    rows: dict[Heads, dict[Column, Cell]] = {}
    for method in sorted({entry.method for entry in used}, key=method_position):
        own = [column for column in cells if (column == DENSE_COLUMN) == (method == DENSE_LOOK.label)]
        rows[(blocks.get(method, ""), method)[-len(stubs) :]] = {
            column: average(method, cells[column]) for column in own
        }
    return [_by_column(Table(name, title, about, stubs), used, rows)] if used else []


def measures_by_start(name: str, title: str, about: str, measures: Measures, used: list[Entry]) -> list[Table]:
    """Networks and methods down, accuracy, measures and starts across, for each data set and sparsity."""
    groups: dict[tuple[str, float], list[Entry]] = defaultdict(list)
    for entry in used:
        if entry.method != DENSE_LOOK.label:
            groups[entry.data, entry.column[0]].append(entry)
    tables = []
    for key, own in groups.items():
        starts = sorted({entry.column[1] for entry in own}, key=start_position)
        rows: dict[Heads, list[Cell]] = {
            (e.network, e.method): [NO_RUN] * len(starts) * (1 + len(measures)) for e in own
        }
        for entry in own:
            cells = [accuracy(entry), *(measured_cell(entry, *measure) for measure in measures.values())]
            rows[entry.network, entry.method][starts.index(entry.column[1]) :: len(starts)] = cells
        columns = [(group, start_label(start)) for group in ("Top-1 acc. [%]", *measures) for start in starts]
        table = Table(
            f"{name}-{key[0].lower()}-{key[1]:g}", title.format(*key), about.format(*key), ("Network", "Method")
        )
        tables.append(finished(replace(table, columns=tuple(columns)), own, rows, len(starts)))
    return tables


def _by_column(table: Table, used: list[Entry], rows: Mapping[Heads, Mapping[Column, Cell]]) -> Table:
    """The table with its columns, sparsity by sparsity; Dense has one cell across all of them."""
    sparse = {column for row in rows.values() for column in row} - {DENSE_COLUMN}
    columns = sorted(sparse, key=lambda column: (column[0], start_position(column[1]))) or [DENSE_COLUMN]
    across = {heads: [row.get(column, NO_RUN) for column in columns] for heads, row in rows.items()}
    dense = {heads: row[DENSE_COLUMN] for heads, row in rows.items() if DENSE_COLUMN in row}
    across |= {heads: [replace(cell, span=len(columns))] for heads, cell in dense.items()}
    names = {column: _sparsity_name(column, used) for column in columns}
    headings = tuple((names[column], start_label(column[1])) for column in columns)
    if any("matches" in name for name in names.values()):
        about = "Matches: as many connections per neuron as the network of full width has at that sparsity."
        others = sorted({entry.network for entry in used if not _scales_evenly(entry)})
        about += f" Not so for {', '.join(others)}, where some layers keep their width." if others else ""
        table = replace(table, caption=f"{table.caption} {about}")
    return finished(replace(table, columns=headings), used, across, len(columns))


def _sparsity_name(column: Column, used: Iterable[Entry]) -> str:
    """The sparsity of a column, and for narrow networks the one that it matches at full width.

    Two networks have as many connections per neuron if the density times the width is the same.
    """
    sparsity, in_column = column[0], [entry for entry in used if entry.column == column]
    in_column = [entry for entry in in_column if _scales_evenly(entry) and not _has_dense_layers(entry)]
    widths = {record.run.width for entry in in_column for record in entry.records}
    full = round(1 - (1 - sparsity) * min(widths, default=1.0), 6)
    narrow = len(widths) == 1 and min(widths) < 1
    return f"s={sparsity:g} (matches {full:g})" if narrow else f"s={sparsity:g}"


def _scales_evenly(entry: Entry) -> bool:
    return all((network := MODELS.get(r.run.model)) is None or network.scales_evenly for r in entry.records)


def _has_dense_layers(entry: Entry) -> bool:
    """Whether a layer behind the first starts dense: then its neurons have fewer connections than at full width."""
    layers = [layer for r in entry.records if r.result is not None for layer in r.result["layers"][1:]]
    return any(layer["initial_nnz"] == prod(layer["shape"]) for layer in layers)


def finished(table: Table, used: list[Entry], rows: Mapping[Heads, Sequence[Cell]], ranked: int) -> Table:
    """The table with its rows, the best of its first columns ranked, and a caption that counts what is missing."""
    cells = [cell for row in rows.values() for cell in row]
    runs, seeds = [record for entry in used for record in entry.records], sorted({len(entry.records) for entry in used})
    left, empty = sum(record.result is None for record in runs), sum(cell.text == EMPTY for cell in cells)
    lines = sorted({100 * failure_line(record.result["classes"]) for record in runs if record.result is not None})
    usual = f", {usual_seeds(cells)} where no n is given" if len({cell.n for cell in cells if cell.n}) > 1 else ""
    spread = f"Mean ± standard deviation over {' to '.join(map(str, seeds[:: len(seeds) - 1 or 1]))} seeds{usual}."
    caption = [table.caption, spread if seeds[-1] > 1 else "One seed: no spread is known."]
    failures = f"{FAILED} failed: below {' or '.join(f'{line:g} %' for line in lines)} accuracy."
    caption += [failures] * any(cell.failed for cell in cells)
    caption += ["† failed seeds, excluded from the mean."] * any(cell.failed and cell.n for cell in cells)
    absent = f"no finished run: {empty} of {len(cells)} cells" if left else "not run"
    caption += [f"{EMPTY} {absent}."] * bool(empty)
    caption += [f"{left} of {len(runs)} runs are not finished."] * bool(left)
    with_ranks = (
        (heads, tuple(_ranked(heads, i, rows, ranked) for i in range(len(row)))) for heads, row in rows.items()
    )
    return replace(table, caption=" ".join(caption), rows=tuple(with_ranks))


def _ranked(heads: Heads, i: int, rows: Mapping[Heads, Sequence[Cell]], ranked: int) -> Cell:
    """A cell with its rank in its block and column, by the number as printed.

    A cell with failed seeds has no rank, and neither has one without rivals.
    """
    cell: Cell = rows[heads][i]
    if i >= ranked or heads[-1] == DENSE_LOOK.label or not cell.n or cell.failed:
        return cell
    block = [row[i] for other, row in rows.items() if other[:-1] == heads[:-1] and other[-1] != DENSE_LOOK.label]
    if sum(rival.text != EMPTY for rival in block) < 2:
        return cell
    rank = 1 + sum(float(rival.text) > float(cell.text) for rival in block if rival.n and not rival.failed)
    return replace(cell, rank=rank if rank <= 3 else None)
