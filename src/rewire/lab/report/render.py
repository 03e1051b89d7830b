"""Tables as text: Markdown, CSV, LaTeX and the terminal."""

import csv
import io
from collections.abc import Iterable, Sequence
from copy import copy
from itertools import groupby

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from rewire.lab.report.cells import Cell, Heads, Table, usual_seeds

CIRCLED, COLOURS = {1: " ①", 2: " ②", 3: " ③"}, {1: "bold green", 2: "cyan", 3: "yellow"}
RANKS = "the best three of each block and column"
EMPHASIS = {1: r"\textbf{{{}}}", 2: r"\underline{{{}}}", 3: r"\textit{{{}}}"}
TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "[": "{[}", "]": "{]}"}
TEX |= {"^": r"\textasciicircum{}", "±": r"$\pm$", "†": r"$\dagger$", "·": r"$\cdot$", "<": "$<$", ">": "$>$"}


def to_markdown(table: Table) -> str:
    """A GitHub table; circled numbers mark the best three."""
    lines = [[*table.stubs, *(f"{group} {name}" for group, name in table.columns)]]
    lines += [["---"] * len(table.stubs) + ["--:"] * len(table.columns)]
    for heads, cells in table.rows:
        lines.append([*heads, *(shown(cell, usual(table)) + CIRCLED.get(cell.rank or 0, "") for cell in flat(cells))])
    body = "\n".join("| " + " | ".join(text.replace("|", r"\|") for text in line) + " |" for line in lines)
    key = f" ① ② ③: {RANKS}." if _is_ranked(table) else ""
    return f"**{table.title}**\n\n{body}\n\n{table.caption}{key}\n"


def _is_ranked(table: Table) -> bool:
    return any(cell.rank for _, cells in table.rows for cell in cells)


def to_csv(table: Table) -> str:
    """One line per cell, with its seeds and their values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*table.stubs, "group", "column", "text", "mean", "std", "n", "failed", "rank", "values", "note"])
    for heads, cells in table.rows:
        columns = table.columns if len(cells) == len(table.columns) else [("", "all")]
        for cell, (group, name) in zip(cells, columns, strict=True):
            values = " ".join(f"{value:.6g}" for value in cell.values)
            known = [cell.text, cell.mean, cell.std, cell.n, cell.failed, cell.rank, values, cell.note]
            writer.writerow([*heads, group, name, *known])
    return text.getvalue()


def to_latex(table: Table) -> str:
    """A table for booktabs: bold, underlined and italic for the best three."""
    stubs, width = len(table.stubs), len(table.columns)
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{'l' * stubs}{'r' * width}}}", r"\toprule"]
    groups, rules, at = [""] * stubs, "", stubs + 1
    for name, count in column_groups(table):
        groups.append(rf"\multicolumn{{{count}}}{{c}}{{{tex(name)}}}")
        rules, at = rules + rf"\cmidrule(lr){{{at}-{at + count - 1}}}", at + count
    headings = [*table.stubs, *(name for _, name in table.columns)]
    lines += [" & ".join(groups) + r" \\", rules, " & ".join(map(tex, headings)) + r" \\"]
    for first, heads, cells in rows_of(table):
        lines += [r"\midrule"] * first
        values = [EMPHASIS.get(cell.rank or 0, "{}").format(tex(shown(cell, usual(table)))) for cell in cells]
        wide = [rf"\multicolumn{{{cell.span}}}{{c}}" if cell.span > 1 else "" for cell in cells]
        texts = (f"{span}{{{value}}}" if span else value for span, value in zip(wide, values, strict=True))
        lines.append(" & ".join([*map(tex, heads), *texts]) + r" \\")
    key = f" Bold, underlined, italic: {RANKS}." if _is_ranked(table) else ""
    caption = tex(f"{table.title.split(': ', 1)[-1].capitalize()}. {table.caption}{key}")
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}", rf"\label{{tab:{table.name}}}"]
    return "\n".join([*lines, r"\end{table}", ""])


def to_rich(table: Table, width: int = 120) -> list[RichTable | Text]:
    """For a terminal of some width, caption last: a table that is too wide is divided, so that no number is cut."""
    columns, caption = range(len(table.columns)), Text(table.caption, style="italic")
    parts: list[list[int]] = []
    for column in columns:
        if parts and _width(_rich(table, [*parts[-1], column])) <= width:
            parts[-1].append(column)
        else:
            parts.append([column])
    return [*(_rich(table, part) for part in parts), caption]


def _rich(table: Table, columns: Sequence[int]) -> RichTable:
    """Some columns of a table."""
    rich = RichTable(title=Text(table.title), title_justify="left")
    for stub in table.stubs:
        rich.add_column(stub, no_wrap=True)
    grouped = any(table.columns[column][0] for column in columns)
    for column in columns:
        group, name = table.columns[column]
        rich.add_column(Text(f"{group}\n{name}" if grouped else name), justify="right", no_wrap=True)
    for first, heads, cells in rows_of(table):
        if first:
            rich.add_section()
        each = flat(cells)
        chosen = [each[column] for column in columns]
        numbers = [shown(cell, usual(table)) for cell in chosen]
        texts = [text + CIRCLED.get(cell.rank or 0, "") for text, cell in zip(numbers, chosen, strict=True)]
        rich.add_row(*heads, *map(Text, texts, [COLOURS.get(cell.rank or 0, "") for cell in chosen]))
    return rich


def _width(table: RichTable) -> int:
    """How wide the columns of a table want to be."""
    bare = copy(table)
    bare.title = None
    console = Console(width=1000)
    return Measurement.get(console, console.options, bare).maximum


def shown(cell: Cell, usual: int = 0) -> str:
    """The number, its spread, how many seeds failed, and n unless it is the usual one: ``84.00 ± 1.41 †1 (n=2)``."""
    spread = f" ± {cell.spread}" if cell.spread else ""
    failed = f" †{cell.failed}" if cell.failed and cell.n else ""
    return cell.text + spread + failed + (f" (n={cell.n})" if usual and cell.n not in (0, usual) else "")


def usual(table: Table) -> int:
    """The number of seeds that most cells of a table have."""
    return usual_seeds(cell for _, cells in table.rows for cell in cells)


def tex(text: str) -> str:
    """Text with the special characters of LaTeX escaped."""
    return "".join(TEX.get(char, char if char.isascii() else "?") for char in text)


def column_groups(table: Table) -> list[tuple[str, int]]:
    """The groups of columns, and how wide they are."""
    return [(name, len(list(below))) for name, below in groupby(group for group, _ in table.columns)]


def rows_of(table: Table) -> Iterable[tuple[bool, Heads, tuple[Cell, ...]]]:
    """The rows: whether a block begins, the headings without those that repeat the row above, the cells."""
    for _, block in groupby(table.rows, lambda row: row[0][:-1]):
        for i, (heads, cells) in enumerate(block):
            yield i == 0, heads if i == 0 else ("",) * (len(heads) - 1) + heads[-1:], cells


def flat(cells: Iterable[Cell]) -> list[Cell]:
    """One cell per column, for formats in which cells cannot span columns."""
    return [cell for cell in cells for _ in range(cell.span)]
