"""What every engine does with a run, wherever it is carried out, and when a run has lost its worker too often."""

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rewire.lab.results import BusyError
from rewire.lab.run import Run
from rewire.lab.training.train import Place, Report, train

ATTEMPTS = 3  # how often a run may lose its worker before it counts as failed
Listen = Callable[[Run, dict[str, Any]], None]  # hears of every run: begin, step, epoch, done, failed, lost
Outcome = dict[str, str | None]  # by the run's id: None when it is done, or why it is not


def carry_out(run: Run, folder: Path, place: Place, report: Report) -> dict[str, Any]:
    """Train, and return the last event: done with its accuracy, or failed with the reason."""
    try:
        for _ in range(20):
            try:
                return {"kind": "done", "accuracy": train(run, folder, place, report)["accuracy"]}
            except BusyError:  # a worker of a sweep that was just killed notices it at its next report
                time.sleep(0.5)
        return {"kind": "failed", "error": f"another process works on {folder}"}
    except Exception as error:
        last = traceback.format_exception_only(error)[-1].strip()
        return {"kind": "failed", "error": last, "traceback": traceback.format_exc()}


def seldom(report: Report) -> Report:
    """The same, with no more than four steps a second: a short step would spend its time on reporting."""
    spoken = 0.0

    def sometimes(event: dict[str, Any]) -> None:
        nonlocal spoken
        if event["kind"] == "step" and time.monotonic() - spoken < 0.25:
            return
        spoken = time.monotonic()
        report(event)

    return sometimes


def goes_on(run: Run, lost: int, outcome: Outcome, listen: Listen) -> bool:
    """Whether a run that has lost its worker so many times is resumed; if not, it is given up in ``outcome``."""
    if lost < ATTEMPTS:
        listen(run, {"kind": "lost"})
        return True
    outcome[run.id] = f"its worker was killed {lost} times (out of memory?)"
    listen(run, {"kind": "failed", "error": outcome[run.id]})
    return False
