"""``rewire report`` and ``rewire runs``: what there is in a folder of runs."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table as RichTable
from rich.text import Text

from rewire.lab.cli import arguments as cli
from rewire.lab.cli.terminal import console
from rewire.lab.compact import collect as collect_runs
from rewire.lab.compact import read_runs
from rewire.lab.labels import blocks, in_folders
from rewire.lab.report.comparison import Arrangement
from rewire.lab.report.render import to_rich
from rewire.lab.report.report import report_tables, write_report
from rewire.lab.report.results_page import write_page
from rewire.lab.results import STATUSES, Record, read_plan


def report(command: "cli.Report", words: str) -> None:
    """Write the report, and print its tables; or write the results page."""
    if command.page is not None:
        write_page(read_runs(command.directory), command.scale, command.directory, command.page)
        console.print(f"page: {command.page}", highlight=False, soft_wrap=True)
        return
    arrangement = Arrangement.parse(command.rows, command.columns, command.baseline)
    show_report(command.directory, command.layer, arrangement=arrangement, out=command.out)


def collect(command: "cli.Collect", words: str) -> None:
    """Write the finished runs of a folder into one file."""
    count = collect_runs(command.directory, command.out, add=command.add)
    size = command.out.stat().st_size / 1e6
    console.print(f"{count} runs, {size:.1f} MB: {command.out}", highlight=False, soft_wrap=True)


def show_report(
    directory: Path,
    layer: str | None = None,
    only: str = "",
    arrangement: Arrangement | None = None,
    out: Path | None = None,
) -> None:
    """Write the report with all tables, and print those that are about the experiment, or that were asked for."""
    # Written first, because a reader of the output such as `head` may close it early.
    path = write_report(directory, layer=layer, arrangement=arrangement, out=out)
    chosen = ("grid", "differences") if arrangement is not None and arrangement.is_chosen else (only, "differences")
    for table in report_tables(read_runs(directory), arrangement):
        if table.name.startswith(chosen):
            for part in to_rich(table, console.width):
                console.print(part)
    console.print(f"\nreport: {path}", highlight=False, soft_wrap=True)


def runs(command: "cli.Runs", words: str) -> None:
    """The status of every run, and the settings in which the runs differ."""
    records = read_plan(command.directory)
    listed = [record.run for record in records]
    folders = [str(record.folder.relative_to(command.directory)) for record in records]
    parts = blocks(listed)
    labels = ["" for _ in records]
    for part in parts:
        places, own = zip(*part.with_seeds(), strict=True)
        for place, label in zip(places, in_folders(own, [folders[place] for place in places]), strict=True):
            labels[place] = label
    if len(records) == 1:
        labels = [listed[0].label]
    widest = max(map(len, labels))
    for number, part in enumerate(parts):
        if number:
            console.print()
        if len(records) > 1:
            console.print(f"all: {part.title}" if len(parts) == 1 else Text(part.title, style="bold"), highlight=False)
        console.print(_status_table([(labels[place], records[place]) for place in part.places], widest))
    console.print(_counts(records), highlight=False)


def _status_table(rows: Sequence[tuple[str, Record]], widest: int) -> RichTable:
    """The runs of a block; columns line up with those of other blocks."""
    table = RichTable(box=None, pad_edge=False)
    table.add_column("run", overflow="fold", min_width=min(widest, console.width - 40))
    for name, width in (("status", 7), ("epochs", 7), ("accuracy", 8), ("id", 6)):
        table.add_column(name, no_wrap=True, justify="left" if name == "status" else "right", min_width=width)
    for label, record in rows:
        evaluated = [line["accuracy"] for line in record.metrics if "accuracy" in line]
        accuracy = f"{evaluated[-1]:.2%}" if evaluated else ""
        note = f" ({record.missing_code})" if record.missing_code else ""
        epochs = f"{len(record.metrics)}/{record.run.epochs}"
        table.add_row(Text(label + note), record.status, epochs, accuracy, record.run.id[:6])
    return table


def _counts(records: Sequence[Record]) -> str:
    return ", ".join(f"{sum(record.status == status for record in records)} {status}" for status in STATUSES)
