"""What people see while runs are carried out: progress bars on a terminal, lines elsewhere."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from rewire.lab.cli.estimate import Estimate
from rewire.lab.labels import distinct_labels, titles
from rewire.lab.run import Run

NUMBERS = 46  # columns of a terminal that a bar and its numbers take
BAR = 10


class Display:
    """One progress display for all workers, with an estimate of the time left."""

    def __init__(self, runs: Sequence[Run], workers: int, done: dict[str, int], console: Console | None = None) -> None:
        """``done``: epochs that each run had finished before."""
        self.console = console or Console()
        self.runs = {run.id: run for run in runs}
        self.epochs = {run.id: done.get(run.id, 0) for run in runs}
        self.finished = sum(self.epochs[run.id] >= run.epochs for run in runs)
        labels = distinct_labels(runs) if len(runs) > 1 else [runs[0].label]
        self.labels = dict(zip(self.runs, labels, strict=True))
        self._estimate = Estimate(runs, workers)
        self._next_estimate = 0.0  # when the time left is worked out again
        self._began: dict[str, float] = {}  # when a worker took up a run, until its first epoch from there
        self._heard: dict[str, float] = {}  # when the last epoch of a run ended
        self._warm = False  # whether a run has ended, so that some worker is past its first
        self._tasks: dict[str, TaskID] = {}
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        total = sum(run.epochs for run in runs)
        self._all = self._bars.add_task("all epochs", total=total, completed=sum(self.epochs.values()), note="")

    def __enter__(self) -> "Display":
        if len(self.runs) > 1:
            for title in titles(list(self.runs.values())):
                self.console.print(title, highlight=False)
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._bars.stop()

    def listen(self, run: Run, event: dict[str, Any]) -> None:
        """Show an event of a run."""
        kind = event["kind"]
        if kind == "begin":
            self._begin(run)
        elif kind == "start":
            self._began[run.id] = time.monotonic()
        elif kind == "epoch":
            self._epoch(run, event)
        elif kind == "lost":
            self._print(run, "[yellow]its worker was killed: the run resumes from its last checkpoint[/]")
        elif kind == "done":
            self.finished += 1
            self._warm = True
            if run.id in self._heard:
                self._estimate.add_end(time.monotonic() - self._heard[run.id])
            self._print(run, f"{event['accuracy']:.2%}")
        elif kind == "failed":
            self.finished += 1
            self._print(run, f"[red]failed:[/] {event['error']}")

    def _begin(self, run: Run) -> None:
        self._began[run.id] = time.monotonic()
        room = max(self.console.width - NUMBERS, 12)
        label = shortened(self.labels[run.id], room)
        self._tasks[run.id] = self._bars.add_task(label, total=run.epochs, completed=self.epochs[run.id], note="")

    def _epoch(self, run: Run, event: dict[str, Any]) -> None:
        self._estimate.add_epoch(run, event["seconds"])
        self._heard[run.id] = time.monotonic()
        began = self._began.pop(run.id, None)
        if began is not None:  # the first epoch since a worker took up the run, which it may have resumed
            setup = time.monotonic() - began - event["seconds"]
            self._estimate.add_setup(max(setup, 0.0), first=not self._warm)
        if event["epoch"] > self.epochs[run.id]:  # a resumed run may repeat an epoch
            self.epochs[run.id] = event["epoch"]
            self._bars.advance(self._all)
        note = f"loss {event['loss']:.3f}"
        note += f" accuracy {event['accuracy']:.1%}" if "accuracy" in event else ""
        self._bars.update(self._tasks[run.id], completed=event["epoch"], note=note)
        if self.console.is_terminal and time.monotonic() >= self._next_estimate:
            self._bars.update(self._all, note=self.time_left())
            self._next_estimate = time.monotonic() + 1.0  # it goes through all runs, and there may be thousands

    def _print(self, run: Run, text: str) -> None:
        if run.id in self._tasks:
            self._bars.remove_task(self._tasks.pop(run.id))
        count = f"[{min(self.finished, len(self.runs))}/{len(self.runs)}]"
        self.console.print(f"{count} {self.labels[run.id]}: {text}", highlight=False, soft_wrap=True)

    def seconds_left(self) -> float | None:
        """The estimate; ``None`` before the first epoch."""
        now = time.monotonic()
        setting_up = {key: now - began for key, began in self._began.items() if key in self._tasks}
        return self._estimate.left(self.epochs, [self.runs[key] for key in self._tasks], setting_up)

    def time_left(self) -> str:
        """The estimate in words; nothing before the first epoch."""
        seconds = self.seconds_left()
        return "" if seconds is None else f"about {duration(seconds)} left"


def shortened(text: str, room: int) -> str:
    """A text that fits, without its middle if it is too long: what differs is at the ends.

    >>> shortened("mlp digits ggr 97% seed 0", 15)
    'mlp dig… seed 0'
    """
    if len(text) <= room:
        return text
    return f"{text[: room // 2]}…{text[-(room - room // 2 - 1) :]}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> duration(75), duration(3 * 3600 + 62), duration(90_000)
    ('01:15', '03:01:02', '1 day 01:00:00')
    """
    form = "%H:%M:%S" if seconds >= 3600 else "%M:%S"
    days = int(seconds // 86400)
    count = f"{days} day{'s' if days > 1 else ''} " if days else ""
    return count + time.strftime(form, time.gmtime(seconds))
