"""``rewire report``: tables and figures as files, and one page that needs nothing but a browser.

Only reads what runs left on disk; a folder of half-finished runs gives a report on what there is.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable
from rich.text import Text

from rewire.lab.figures import DARK, Picture, pictures, save, to_svg
from rewire.lab.results import Record, Status, atomically, read_json, read_records
from rewire.lab.tables import Cell, Heads, Table, distinct, tables

Sweeps = list[dict[str, Any]]  # contents of sweep.json

CIRCLED, COLOURS = {1: " ①", 2: " ②", 3: " ③"}, {1: "bold green", 2: "cyan", 3: "yellow"}
EMPHASIS = {1: r"\textbf{{{}}}", 2: r"\underline{{{}}}", 3: r"\textit{{{}}}"}
TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "[": "{[}", "]": "{]}"}
TEX |= {"^": r"\textasciicircum{}", "±": r"$\pm$", "†": r"$\dagger$", "·": r"$\cdot$", "<": "$<$", ">": "$>$"}
STATES: tuple[Status, ...] = ("done", "running", "failed", "waiting")
RANKS = "the best three of each block and column"
CSS = """
:root{color-scheme:light dark;--bg:#f7f7f5;--card:#fff;--ink:#1f2937;--soft:#5d6675;--line:#e2e5e9;--mark:194,65,12}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:65rem;margin:0 auto;padding:2.5rem 1.25rem 5rem}
h1{font-size:2rem;line-height:1.2;letter-spacing:-.02em;margin:0}
h2{font-size:1.35rem;letter-spacing:-.01em;margin:3.5rem 0 0;padding-top:1.5rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:2.2rem 0 .7rem}
p{margin:.5rem 0}
li,dd{overflow-wrap:anywhere}
.soft,figcaption,dt,summary{color:var(--soft);font-size:.875rem}
figcaption{max-width:46rem;margin:.7rem 0 0}
.chips{display:flex;flex-wrap:wrap;gap:.5rem;list-style:none;margin:1.25rem 0 2rem;padding:0}
.chips li{background:var(--card);border:1px solid var(--line);border-radius:99px;padding:.2rem .9rem;font-size:.875rem}
.chips .n0{opacity:.6}
nav ul{margin:0;padding:0;list-style:none;columns:2 17rem;font-size:.9rem;line-height:1.45}
nav li{padding:.16rem 0}
figcaption a{white-space:nowrap}
a{color:inherit;text-decoration-color:rgba(var(--mark),.55);text-underline-offset:.22em}
a:hover{text-decoration-color:currentColor}
.begun{padding-left:1.1rem;margin:.3rem 0 2rem;font-size:.9rem}
figure{margin:0}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:10px}
.scroll:has(table){width:fit-content;max-width:100%}
:focus-visible{outline:2px solid rgb(var(--mark));outline-offset:2px}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;margin:.3rem 0}
th,td{padding:.3rem .45rem;text-align:right;white-space:nowrap;font-weight:500}
thead th{color:var(--soft);font-size:.85rem}
thead th[colspan]{text-align:center}
thead tr:last-child th,thead .stub{border-bottom:1px solid var(--line)}
tbody+tbody tr:first-child>*{border-top:1px solid var(--line)}
.stub{position:sticky;left:0;z-index:1;background:var(--card);text-align:left;padding-left:1rem;padding-right:1rem}
.block{text-align:left;font-weight:650;padding:.7rem 1rem .2rem}
.block span{position:sticky;left:.7rem}
.new{padding-left:1.4rem}
tr>:last-child{padding-right:1rem}
.wide{text-align:center}
.off,td small{color:var(--soft)}
.v+small:not(:empty){margin-left:.2em}
.v{display:inline-block;border-radius:5px;padding:0 .4em}
.r3{background:rgba(var(--mark),.1)}
.r2{background:rgba(var(--mark),.27)}
.r1{background:rgb(var(--mark));color:var(--card);font-weight:650}
figcaption .v{margin-right:.35em}
svg{display:block;width:100%;min-width:35rem;height:auto;padding:1rem}
svg text{font-family:system-ui,-apple-system,"Segoe UI",sans-serif!important}
pre{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:.8rem 1rem;font-size:.85rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.8rem 0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.2rem;font-size:.9rem;margin:.5rem 0}
dd{margin:0}
@media(max-width:30rem){main{padding:1.5rem .9rem 3rem}h1{font-size:1.55rem}.stub,.block{padding-left:.7rem}}
@media print{body{background:#fff}.scroll{overflow:visible}}
@media(prefers-color-scheme:dark){
:root{--bg:#11151b;--card:#181e26;--ink:#e2e6ec;--soft:#9aa4b2;--line:#2b333f;--mark:255,127,69;SHADES}
}
"""


def write_report(directory: Path, *, layer: str | None = None) -> Path:
    """``report.html`` and the folder ``report`` with every table and figure; returns the path of the page.

    Args:
        directory: a folder with runs below it.
        layer: whose masks are shown; the third layer if not given.

    """
    records = read_records(directory)
    sweeps = [_sweep(path) for path in sorted(directory.rglob("sweep.json"))]
    made, drawn = tables(records), pictures(records, layer)
    for table in made:
        for kind, text in (("csv", to_csv(table)), ("md", to_markdown(table)), ("tex", to_latex(table))):
            _write(directory / "report" / f"{table.name}.{kind}", text)
    for picture in drawn:
        save(picture.figure, directory / "report" / picture.name)
    names = [f"{sweep['experiment']}, {sweep['scale']} scale" for sweep in sweeps]
    _write(directory / "report.html", page(" · ".join(names) or directory.resolve().name, records, sweeps, made, drawn))
    return directory / "report.html"


def to_markdown(table: Table) -> str:
    """A GitHub table; circled numbers mark the best three."""
    lines = [[*table.stubs, *(f"{group} {name}" for group, name in table.columns)]]
    lines += [["---"] * len(table.stubs) + ["--:"] * len(table.columns)]
    for heads, cells in table.rows:
        lines.append([*heads, *(shown(cell, _usual(table)) + CIRCLED.get(cell.rank or 0, "") for cell in _flat(cells))])
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
    for name, count in _groups(table):
        groups.append(rf"\multicolumn{{{count}}}{{c}}{{{tex(name)}}}")
        rules, at = rules + rf"\cmidrule(lr){{{at}-{at + count - 1}}}", at + count
    headings = [*table.stubs, *(name for _, name in table.columns)]
    lines += [" & ".join(groups) + r" \\", rules, " & ".join(map(tex, headings)) + r" \\"]
    for first, heads, cells in _lines(table):
        lines += [r"\midrule"] * first
        values = [EMPHASIS.get(cell.rank or 0, "{}").format(tex(shown(cell, _usual(table)))) for cell in cells]
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
    for first, heads, cells in _lines(table):
        if first:
            made.add_section()
        texts = [shown(cell, _usual(table)) if narrow else cell.text for cell in _flat(cells)]
        texts = [text + CIRCLED.get(cell.rank or 0, "") for text, cell in zip(texts, _flat(cells), strict=True)]
        styles = [COLOURS.get(cell.rank or 0, "") for cell in _flat(cells)]
        made.add_row(*heads, *map(Text, texts, styles))
    return made


def to_html(table: Table) -> str:
    """A section with the table in a box that scrolls by itself; what is known of a cell appears on hover."""
    stubs = "".join(f'<th class="stub" rowspan="2">{escape(stub)}</th>' for stub in table.stubs[-1:])
    groups = "".join(f'<th colspan="{count}">{escape(name)}</th>' for name, count in _groups(table))
    names = "".join(f"<th>{escape(name)}</th>" for _, name in table.columns)
    body = ""
    for heads, block in groupby(table.rows, lambda row: row[0][:-1]):
        name, width = escape(", ".join(heads)), 1 + len(table.columns)
        head = f'<tr><th class="block" colspan="{width}"><span>{name}</span></th></tr>' if heads else ""
        rows = (f'<tr><th class="stub">{escape(row[-1])}</th>{_cells(table, cells)}</tr>' for row, cells in block)
        body += f"<tbody>{head}{''.join(rows)}</tbody>"
    key = "".join(f'<span class="v r{rank}">{word}</span>' for rank, word in ((1, "best"), (2, "second"), (3, "third")))
    key = key if any(cell.rank for _, cells in table.rows for cell in cells) else ""
    table_ = f"<table><thead><tr>{stubs}{groups}</tr><tr>{names}</tr></thead>{body}</table>"
    return _section(table, table_, key, ("csv", "md", "tex"))


def page(title: str, records: list[Record], sweeps: Sweeps, made: list[Table], drawn: list[Picture]) -> str:
    """The whole report, with nothing that has to be fetched."""
    shades = ";".join(f"--c{light[1:]}:{dark}" for light, dark in DARK.items())
    parts: list[Table | Picture] = [*made, *drawn]
    links = "".join(f'<li><a href="#{escape(one.name)}">{escape(one.title)}</a></li>' for one in parts)
    nothing = '<p class="soft">No run is finished yet: tables appear with the first one.</p>'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)} · Rewire report</title><style>{CSS.replace('SHADES', shades)}</style></head>"
        f'<body><main><p class="soft">Rewire report</p><h1>{escape(title)}</h1>{_status(records, sweeps)}'
        f"<nav><ul>{links}</ul></nav><h2>Tables</h2>{''.join(map(to_html, made)) or nothing}"
        f"<h2>Figures</h2>{''.join(map(_figure, drawn)) or nothing.replace('tables', 'figures')}"
        f"<h2>How this was made</h2>{_origin(records, sweeps)}</main></body></html>\n"
    )


def _figure(picture: Picture) -> str:
    label = f'<svg role="img" aria-label="{escape(picture.title)}"'
    return _section(picture, to_svg(picture.figure, picture.name).replace("<svg", label, 1), "", ("png", "svg"))


def _section(of: Table | Picture, content: str, key: str, kinds: Iterable[str]) -> str:
    """A heading, a box that scrolls by itself, a caption, and links to the same in other formats."""
    links = " ".join(f'<a href="report/{escape(of.name)}.{kind}">{kind.upper()}</a>' for kind in kinds)
    return (
        f'<section id="{escape(of.name)}"><h3>{escape(of.title)}</h3><figure><div class="scroll" tabindex="0">{content}'
        f"</div><figcaption>{key}{escape(of.caption)} {links}</figcaption></figure></section>"
    )


def _cells(table: Table, cells: Iterable[Cell]) -> str:
    text, at = "", 0
    for cell in cells:
        new = at == 0 or table.columns[at][0] != table.columns[at - 1][0]
        kind = " ".join(["new"] * new + ["wide"] * (cell.span > 1) + ["off"] * (cell.mean is None))
        small = escape(shown(cell, _usual(table)).removeprefix(cell.text).strip())
        text += (
            f'<td class="{kind}" colspan="{cell.span}" title="{escape(cell.note)}"><span class="v r{cell.rank or 0}">'
        )
        text += f"{escape(cell.text)}</span><small>{small}</small></td>"
        at += cell.span
    return text


def _status(records: list[Record], sweeps: Sweeps) -> str:
    """How many runs are done and not, and what is known about those that began."""
    once = distinct(records)
    counts = Counter(record.status for record in once)
    planned = {name for sweep in sweeps for name in sweep["runs"]} - {record.run.id for record in records}
    counts["waiting"] += len(planned)
    chips = "".join(f'<li class="n{min(counts[name], 1)}"><b>{counts[name]}</b> {name}</li>' for name in STATES)
    begun = [one for one in once if one.status in ("running", "failed") or (one.status == "waiting" and one.metrics)]
    items = ""
    for one in begun:
        last = f", epoch {one.metrics[-1]['epoch']} of {one.run.epochs}" if one.metrics else ""
        error = "".join(f"<br><code>{escape(line)}</code>" for line in (one.error or "").strip().splitlines()[-1:])
        items += f"<li>{escape(one.run.label)} <span class='soft'>{one.status}{last}</span>{error}</li>"
    return f'<ul class="chips">{chips}</ul>' + (f'<p>Not finished:</p><ul class="begun">{items}</ul>' if items else "")


def _origin(records: list[Record], sweeps: Sweeps) -> str:
    """The commands and the machines, each with the number of runs that it made."""
    results = [record.result for record in records if record.result]
    commands = dict.fromkeys(str(result["command"]) for result in results)
    text = "".join(f"<pre>{escape(sweep['command'])}</pre>" for sweep in sweeps)
    if commands:
        others = f"<pre>{escape(chr(10).join(commands))}</pre>"
        text += (
            f"<details><summary>Commands of the runs ({len(commands)})</summary>{others}</details>"
            if sweeps
            else others
        )
    environments = Counter(json.dumps(result["environment"], sort_keys=True) for result in results)
    for content, count in environments.most_common():
        items = "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in json.loads(content).items())
        text += f"<h3>{count} {'runs' if count != 1 else 'run'}</h3><dl>{items}</dl>"
    if len(environments) > 1:
        text += f'<p class="soft">These runs come from {len(environments)} different environments.</p>'
    return text


def shown(cell: Cell, usual: int = 0) -> str:
    """The number, its spread, how many seeds failed, and n unless it is the usual one: ``84.00 ± 1.41 †1 (n=2)``."""
    spread = f" ± {cell.spread}" if cell.spread else ""
    failed = f" †{cell.failed}" if cell.failed and cell.n else ""
    return cell.text + spread + failed + (f" (n={cell.n})" if usual and cell.n not in (0, usual) else "")


def _usual(table: Table) -> int:
    """The number of seeds that most cells have."""
    counts = Counter(cell.n for _, cells in table.rows for cell in cells if cell.n)
    return max(counts, key=lambda n: (counts[n], n), default=0)


def tex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(TEX.get(char, char if char.isascii() else "?") for char in text)


def _groups(table: Table) -> list[tuple[str, int]]:
    return [(name, len(list(below))) for name, below in groupby(group for group, _ in table.columns)]


def _lines(table: Table) -> Iterable[tuple[bool, Heads, tuple[Cell, ...]]]:
    """The rows: whether a block begins, the headings with those told above left out, the cells."""
    for _, block in groupby(table.rows, lambda row: row[0][:-1]):
        for i, (heads, cells) in enumerate(block):
            yield i == 0, heads if i == 0 else ("",) * (len(heads) - 1) + heads[-1:], cells


def _flat(cells: Iterable[Cell]) -> list[Cell]:
    """One cell per column, for formats in which none can span several."""
    return [cell for cell in cells for _ in range(cell.span)]


def _write(path: Path, text: str) -> None:
    with atomically(path) as file:
        file.write(text.encode())


def _sweep(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if missing := {"experiment", "scale", "command", "runs"} - content.keys():
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}: run the sweep again")
    return content
