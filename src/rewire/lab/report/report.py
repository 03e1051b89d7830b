"""``rewire report``: tables and figures as files, and one self-contained HTML page.

It only reads what runs left on disk; a folder of unfinished runs gives a report of what is there.
"""

import json
from collections import Counter
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from rewire.lab.compact import read_runs
from rewire.lab.report.cells import Cell, Table
from rewire.lab.report.comparison import Arrangement, comparison_tables
from rewire.lab.report.films import film_section
from rewire.lab.report.groups import distinct, told_apart
from rewire.lab.report.pictures import Picture, pictures
from rewire.lab.report.registry import tables
from rewire.lab.report.render import column_groups, shown, to_csv, to_latex, to_markdown, usual
from rewire.lab.report.style import dark_shades, save, to_svg
from rewire.lab.results import STATUSES, Record, atomically, read_json

Sweeps = list[dict[str, Any]]  # contents of sweep.json

CSS = files("rewire.lab.report").joinpath("report.css").read_text()
SCRIPT = files("rewire.lab.report").joinpath("report.js").read_text()
# The browser itself refuses to fetch anything for this page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; frame-src 'self'"


def write_report(
    directory: Path, *, layer: str | None = None, arrangement: Arrangement | None = None, out: Path | None = None
) -> Path:
    """``report.html`` and the folder ``report`` with every table and figure; returns the path of the page.

    Args:
        directory: a folder with runs below it, or a file that ``rewire collect`` wrote.
        layer: whose masks are shown; the third layer if not given.
        arrangement: the rows and columns of one more table, over all runs.
        out: the folder to write to; the folder of the runs, or one beside the file that is named after it.

    """
    records = read_runs(directory)
    out = out or (directory.with_suffix("") if directory.is_file() else directory)
    sweeps = [_sweep(path) for path in sorted(directory.rglob("sweep.json"))]
    shown_tables, shown_figures = report_tables(records, arrangement), pictures(told_apart(records), layer)
    for table in shown_tables:
        for kind, text in (("csv", to_csv(table)), ("md", to_markdown(table)), ("tex", to_latex(table))):
            _write(out / "report" / f"{table.name}.{kind}", text)
    for picture in shown_figures:
        save(picture.figure, out / "report" / picture.name)
    title = " · ".join(_sweep_title(sweep) for sweep in sweeps) or directory.resolve().name
    films = film_section(records, directory)
    _write(out / "report.html", page(title, records, sweeps, shown_tables, shown_figures, films))
    return out / "report.html"


def report_tables(records: list[Record], arrangement: Arrangement | None) -> list[Table]:
    """All tables of a report; the one that was asked for comes first, and replaces the differences that are usual."""
    records = told_apart(records)
    if arrangement is None or not arrangement.is_chosen:
        return tables(records)
    usual = [table for table in tables(records) if not table.name.startswith("differences")]
    return [*comparison_tables(records, arrangement), *usual]


def to_html(table: Table) -> str:
    """A section with the table in a box that scrolls; the seeds of a cell appear on hover."""
    stubs = "".join(f'<th class="stub" rowspan="2">{escape(stub)}</th>' for stub in table.stubs[-1:])
    groups = "".join(f'<th colspan="{count}">{escape(name)}</th>' for name, count in column_groups(table))
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


def page(
    title: str,
    records: list[Record],
    sweeps: Sweeps,
    shown_tables: list[Table],
    shown_figures: list[Picture],
    films: str = "",
) -> str:
    """The whole report as one page that loads nothing else. Without JavaScript it shows all but the films."""
    shades = ";".join(f"--c{light[1:]}:{dark}" for light, dark in dark_shades().items())
    parts: list[Table | Picture] = [*shown_tables, *shown_figures]
    links = "".join(f'<li><a href="#{escape(part.name)}">{escape(part.title)}</a></li>' for part in parts)
    links += '<li><a href="#films">Films</a></li>' if films else ""
    nothing = '<p class="soft">No run is finished yet: tables appear with the first one.</p>'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)} · Rewire report</title><style>{CSS.replace('SHADES', shades)}</style></head>"
        f'<body><main><p class="soft">Rewire report</p><h1>{escape(title)}</h1>{_status(records, sweeps)}'
        f"<nav><ul>{links}</ul></nav><h2>Tables</h2>{''.join(map(to_html, shown_tables)) or nothing}"
        f"<h2>Figures</h2>{''.join(map(_figure, shown_figures)) or nothing.replace('tables', 'figures')}{films}"
        f"<h2>How this was made</h2>{_origin(records, sweeps)}</main><script>{SCRIPT}</script></body></html>\n"
    )


def _figure(picture: Picture) -> str:
    label = f'<svg role="img" aria-label="{escape(picture.title)}"'
    svg = to_svg(picture.figure, picture.name).replace("<svg", label, 1)
    return _section(picture, svg, "", ("png", "svg"), picture.details)


def _section(of: Table | Picture, content: str, key: str, kinds: Iterable[str], details: str = "") -> str:
    """A heading, a box that scrolls, a caption, and links to the same in other formats."""
    links = " ".join(f'<a href="report/{escape(of.name)}.{kind}">{kind.upper()}</a>' for kind in kinds)
    return (
        f'<section id="{escape(of.name)}"><h3>{escape(of.title)}</h3><figure><div class="scroll" tabindex="0">{content}'
        f"</div><figcaption>{key}{escape(of.caption)} {links}</figcaption></figure>{details}</section>"
    )


def _cells(table: Table, cells: Iterable[Cell]) -> str:
    text, at = "", 0
    for cell in cells:
        new = at == 0 or table.columns[at][0] != table.columns[at - 1][0]
        kind = " ".join(["new"] * new + ["wide"] * (cell.span > 1) + ["off"] * (cell.mean is None))
        small = escape(shown(cell, usual(table)).removeprefix(cell.text).strip())
        text += (
            f'<td class="{kind}" colspan="{cell.span}" title="{escape(cell.note)}"><span class="v r{cell.rank or 0}">'
        )
        text += f"{escape(cell.text)}</span><small>{small}</small></td>"
        at += cell.span
    return text


def _status(records: list[Record], sweeps: Sweeps) -> str:
    """How many runs have which status, and how far those are that have begun and are not finished."""
    once = distinct(records)
    counts = Counter(record.status for record in once)
    planned = {name for sweep in sweeps for name in sweep["runs"]} - {record.run.id for record in records}
    counts["planned"] += len(planned)
    chips = "".join(f'<li class="n{min(counts[name], 1)}"><b>{counts[name]}</b> {name}</li>' for name in STATUSES)
    begun = [
        record
        for record in once
        if record.status in ("running", "failed") or (record.status == "planned" and record.metrics)
    ]
    items = ""
    for record in begun:
        last = f", epoch {record.metrics[-1]['epoch']} of {record.run.epochs}" if record.metrics else ""
        error = "".join(f"<br><code>{escape(line)}</code>" for line in (record.error or "").strip().splitlines()[-1:])
        items += f"<li>{escape(record.run.label)} <span class='soft'>{record.status}{last}</span>{error}</li>"
    text = f'<ul class="chips">{chips}</ul>' + (f'<p>Not finished:</p><ul class="begun">{items}</ul>' if items else "")
    marked = [record for record in once if record.missing_code]
    lines = "".join(f"<li>{escape(record.run.label)}: {escape(record.missing_code)}</li>" for record in marked)
    note = "Shown from what is on disk, because the code of these runs is not as it was:"
    return text + (f'<p>{note}</p><ul class="begun">{lines}</ul>' if marked else "")


def _origin(records: list[Record], sweeps: Sweeps) -> str:
    """The commands and the machines, with the number of runs of each."""
    results = [record.result for record in records if record.result]
    commands = dict.fromkeys(str(result["command"]) for result in results if "command" in result)
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


def _sweep_title(sweep: dict[str, Any]) -> str:
    scale = sweep.get("scale")
    return f"{sweep['experiment']}, {scale} scale" if scale else str(sweep["experiment"])


def _write(path: Path, text: str) -> None:
    with atomically(path) as file:
        file.write(text.encode())


def _sweep(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if missing := {"experiment", "command", "runs"} - content.keys():
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}: run the sweep again")
    return content
