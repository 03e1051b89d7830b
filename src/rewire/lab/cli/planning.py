"""``rewire sweep --dry-run``: a line for each configuration of an experiment, and what all of it costs."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from rewire.lab.cli.terminal import console
from rewire.lab.cli.timing import seconds_of
from rewire.lab.labels import blocks
from rewire.lab.run import Run
from rewire.lab.training.trainer import Place

Seconds = Mapping[str, float]  # of each run, by its id


def measure(runs: Sequence[Run], place: Place, threads: int) -> Seconds:
    """Seconds of each run with as many threads as it will have."""
    torch.set_num_threads(max(threads, 1))
    return seconds_of(runs, place)


def show_plan(
    runs: Sequence[Run], done: Collection[Run], directory: Path, seconds: Seconds | None, threads: int
) -> None:
    """Print the configurations by network, the seeds of each, and the totals."""
    parts = blocks(runs)
    configurations = [(part.title, part.by_configuration()) for part in parts]
    widest = max(len(label) for _, lines in configurations for label, _ in lines)
    finished = {run.id for run in done}
    for title, lines in configurations:
        console.print(Text(title, style="bold"), highlight=False)
        table = _table(min(widest, console.width - 38), any_done=bool(finished), timed=seconds is not None)
        for label, members in lines:
            row = [str(len(members))]
            row += [str(sum(run.id in finished for run in members))] if finished else []
            if seconds is not None:
                row += [f"{seconds[members[0].id]:,.0f}", f"{core_hours(members, seconds, threads):,.2f}"]
            table.add_row(Padding(Text(label), (0, 0, 0, 2)), *row)
        console.print(table)
        console.print()
    _totals(runs, sum(len(lines) for _, lines in configurations), finished, seconds, threads)
    console.print("Nothing was trained or written. Leave --dry-run out to carry the runs out in", highlight=False)
    console.print(str(directory), highlight=False, soft_wrap=True)


def _table(width: int, *, any_done: bool, timed: bool) -> RichTable:
    """A table whose columns line up with those of the other networks."""
    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("  configuration", overflow="fold", min_width=width + 2)
    numbers = ["seeds", *["done"] * any_done, *["s a run", "core-hours"] * timed]
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True, min_width=7)
    return table


def _totals(
    runs: Sequence[Run], configurations: int, finished: Collection[str], seconds: Seconds | None, threads: int
) -> None:
    epochs = sum(run.epochs for run in runs)
    left = [run for run in runs if run.id not in finished]
    plural = "s" if configurations > 1 else ""
    lines = [f"{len(runs):,} runs of {configurations:,} configuration{plural}, {epochs:,} epochs"]
    if seconds is not None:
        lines[0] += f", {core_hours(runs, seconds, threads):,.1f} core-hours"
    if finished:
        count = f"{len(finished):,} runs are" if len(finished) > 1 else "1 run is"
        rest = f"{count} done; left: {len(left):,} runs, {sum(run.epochs for run in left):,} epochs"
        lines.append(rest if seconds is None else f"{rest}, {core_hours(left, seconds, threads):,.1f} core-hours")
    for line in lines:
        console.print(line, highlight=False)


def core_hours(runs: Sequence[Run], seconds: Seconds, threads: int) -> float:
    """What runs cost: the hours of each, times the threads that it computes with."""
    return sum(seconds[run.id] for run in runs) * max(threads, 1) / 3600
