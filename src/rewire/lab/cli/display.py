"""What people see while runs are carried out: bars on a terminal, lines elsewhere."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from rewire.lab.run import Run


class Display:
    """One progress display for all workers, with an estimate of the time left from the epochs measured so far."""

    def __init__(self, runs: Sequence[Run], workers: int, done: dict[str, int], console: Console | None = None) -> None:
        """``done``: epochs that each run had finished before."""
        self.console = console or Console()
        self.workers = workers
        self.runs = {run.id: run for run in runs}
        self.epochs = {run.id: done.get(run.id, 0) for run in runs}
        self.finished = sum(self.epochs[run.id] >= run.epochs for run in runs)
        self._cost: dict[tuple[str, str, float], list[float]] = {}  # seconds per epoch of each network
        self._lines: dict[str, TaskID] = {}
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        total = sum(run.epochs for run in runs)
        self._all = self._bars.add_task("all epochs", total=total, completed=sum(self.epochs.values()), note="")

    def __enter__(self) -> "Display":
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._bars.stop()

    def listen(self, run: Run, event: dict[str, Any]) -> None:
        """What a run reports."""
        kind = event["kind"]
        if kind == "begin":
            self._lines[run.id] = self._bars.add_task(
                run.label, total=run.epochs, completed=self.epochs[run.id], note=""
            )
        elif kind == "epoch":
            self._epoch(run, event)
        elif kind == "lost":
            self._say(run, "[yellow]its worker was killed: the run is resumed from its last checkpoint[/]")
        elif kind == "done":
            self.finished += 1
            self._say(run, f"{event['accuracy']:.2%}")
        elif kind == "failed":
            self.finished += 1
            self._say(run, f"[red]failed:[/] {event['error']}")

    def _epoch(self, run: Run, event: dict[str, Any]) -> None:
        self._cost.setdefault(_network(run), []).append(event["seconds"])
        if event["epoch"] > self.epochs[run.id]:  # a resumed run may repeat an epoch
            self.epochs[run.id] = event["epoch"]
            self._bars.advance(self._all)
        note = f"loss {event['loss']:.3f}  accuracy {event['accuracy']:.1%}{densities(run, event)}"
        self._bars.update(self._lines[run.id], completed=event["epoch"], note=note)
        self._bars.update(self._all, note=self.time_left())

    def _say(self, run: Run, words: str) -> None:
        if run.id in self._lines:
            self._bars.remove_task(self._lines.pop(run.id))
        self.console.print(
            f"[{min(self.finished, len(self.runs))}/{len(self.runs)}] {run.label}: {words}", highlight=False
        )

    def time_left(self) -> str:
        """From the mean cost of an epoch of each network; networks not seen yet are counted like the dearest."""
        if not self._cost:
            return ""
        mean = {network: sum(costs) / len(costs) for network, costs in self._cost.items()}
        left = sum(
            (run.epochs - self.epochs[run.id]) * mean.get(_network(run), max(mean.values()))
            for run in self.runs.values()
        )
        unseen = any(_network(run) not in mean for run in self.runs.values())
        return f"about {_duration(left / self.workers)} left" + (" (some networks not timed yet)" if unseen else "")


def densities(run: Run, event: dict[str, Any]) -> str:
    """The smallest and the largest layer, whose densities move."""
    return f"  {min(event['nnz']):,} to {max(event['nnz']):,} weights a layer" if run.method != "dense" else ""


def _network(run: Run) -> tuple[str, str, float]:
    return run.data, run.model, run.width


def _duration(seconds: float) -> str:
    form = "%H:%M:%S" if seconds >= 3600 else "%M:%S"
    days = f"{int(seconds // 86400)} days " if seconds >= 86400 else ""
    return days + time.strftime(form, time.gmtime(seconds))
