"""``rewire report`` and ``rewire runs``: what there is in a folder of runs."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from rewire.lab.cli import arguments as cli
from rewire.lab.labels import common_label, unique_labels
from rewire.lab.report.cells import Table
from rewire.lab.report.registry import tables
from rewire.lab.report.render import to_rich
from rewire.lab.report.report import write_report
from rewire.lab.results import STATUSES, Record, read_plan, read_records

console = Console()


def report(command: "cli.Report", words: str) -> None:
    """Write the report, and print its tables."""
    show_report(command.directory, command.layer)


def show_report(directory: Path, layer: str | None = None, only: str = "", more: Sequence[Table] = ()) -> None:
    """Write the report with all tables, and print those whose names begin with ``only``."""
    path = write_report(directory, layer=layer)  # first, because a reader such as `head` may close the output early
    for table in tables(read_records(directory)):
        if table.name.startswith(only):
            for part in to_rich(table, console.width):
                console.print(part)
    console.print(f"\nreport: {path}", highlight=False, soft_wrap=True)


def runs(command: "cli.Runs", words: str) -> None:
    """The status of every run, and the settings in which the runs differ."""
    records = read_plan(command.directory)
    listed = [record.run for record in records]
    folders = [str(record.folder.relative_to(command.directory)) for record in records]
    if len(records) > 1:
        console.print(f"all: {common_label(listed)}", highlight=False)
    table = RichTable(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for name in ("status", "epochs", "accuracy", "id"):
        table.add_column(name, no_wrap=True, justify="left" if name == "status" else "right")
    labels = unique_labels(listed, folders) if len(records) > 1 else [records[0].run.label]
    for record, label in zip(records, labels, strict=True):
        accuracy = f"{record.metrics[-1]['accuracy']:.2%}" if record.metrics else ""
        note = f" ({record.missing_code})" if record.missing_code else ""
        epochs = f"{len(record.metrics)}/{record.run.epochs}"
        table.add_row(Text(label + note), record.status, epochs, accuracy, record.run.id[:6])
    console.print(table)
    console.print(_counts(records), highlight=False)


def _counts(records: Sequence[Record]) -> str:
    return ", ".join(f"{sum(record.status == status for record in records)} {status}" for status in STATUSES)
