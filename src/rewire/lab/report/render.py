"""Tables as text: Markdown, CSV, LaTeX and the terminal."""

import csv
import io
from collections import Counter
from collections.abc import Iterable
from itertools import groupby

from rich.table import Table as RichTable
from rich.text import Text

from rewire.lab.report.tables import Cell, Heads, Table

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
    return f"**{table.title}**\n\n{body}\n\n{table.caption} ① ② ③: {RANKS}.\n"


def to_csv(table: Table) -> str:
    """One line per cell, with all that is known about it."""
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
    caption = tex(f"{table.title.split(': ', 1)[-1].capitalize()}. {table.caption} Bold, underlined, italic: {RANKS}.")
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}", rf"\label{{tab:{table.name}}}"]
    return "\n".join([*lines, r"\end{table}", ""])


def to_rich(table: Table) -> RichTable:
    """For the terminal."""
    made = RichTable(title=Text(table.title), caption=Text(table.caption), caption_justify="left")
    for stub in table.stubs:
        made.add_column(stub, no_wrap=True)
    for group, name in table.columns:
        made.add_column(Text(f"{group}\n{name}"), justify="right")
    narrow = len(table.columns) <= 6  # more columns leave no room for the spread
    for first, heads, cells in rows_of(table):
        if first:
            made.add_section()
        texts = [shown(cell, usual(table)) if narrow else cell.text for cell in flat(cells)]
        texts = [text + CIRCLED.get(cell.rank or 0, "") for text, cell in zip(texts, flat(cells), strict=True)]
        styles = [COLOURS.get(cell.rank or 0, "") for cell in flat(cells)]
        made.add_row(*heads, *map(Text, texts, styles))
    return made


def shown(cell: Cell, usual: int = 0) -> str:
    """The number, its spread, how many seeds failed, and n unless it is the usual one: ``84.00 ± 1.41 †1 (n=2)``."""
    spread = f" ± {cell.spread}" if cell.spread else ""
    failed = f" †{cell.failed}" if cell.failed and cell.n else ""
    return cell.text + spread + failed + (f" (n={cell.n})" if usual and cell.n not in (0, usual) else "")


def usual(table: Table) -> int:
    """The number of seeds that most cells have."""
    counts = Counter(cell.n for _, cells in table.rows for cell in cells if cell.n)
    return max(counts, key=lambda n: (counts[n], n), default=0)


def tex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(TEX.get(char, char if char.isascii() else "?") for char in text)


def column_groups(table: Table) -> list[tuple[str, int]]:
    """The groups of columns, and how wide they are."""
    return [(name, len(list(below))) for name, below in groupby(group for group, _ in table.columns)]


def rows_of(table: Table) -> Iterable[tuple[bool, Heads, tuple[Cell, ...]]]:
    """The rows: whether a block begins, the headings with those told above left out, the cells."""
    for _, block in groupby(table.rows, lambda row: row[0][:-1]):
        for i, (heads, cells) in enumerate(block):
            yield i == 0, heads if i == 0 else ("",) * (len(heads) - 1) + heads[-1:], cells


def flat(cells: Iterable[Cell]) -> list[Cell]:
    """One cell per column, for formats in which none can span several."""
    return [cell for cell in cells for _ in range(cell.span)]
