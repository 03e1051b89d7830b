"""What all engines share: carrying out one run, and giving up a run whose worker was killed too often."""

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rewire.lab.results import BusyError
from rewire.lab.run import Run
from rewire.lab.training.train import train
from rewire.lab.training.trainer import Place, Report

ATTEMPTS = 3  # how often the worker of a run may be killed before the run counts as failed
Listen = Callable[[Run, dict[str, Any]], None]  # is called with events: begin, start, step, epoch, done, failed, lost
Outcome = dict[str, str | None]  # by the run's id: None if it is done, else why it failed


def carry_out(run: Run, folder: Path, place: Place, report: Report) -> dict[str, Any]:
    """Train a run, and return its last event: done with the accuracy, or failed with the reason."""
    try:
        for _ in range(20):
            try:
                return {"kind": "done", "accuracy": train(run, folder, place, report)["accuracy"]}
            except BusyError:  # the worker of a sweep that was killed just now ends at its next report
                time.sleep(0.5)
        return {"kind": "failed", "error": f"another process works on {folder}"}
    except Exception as error:
        last = traceback.format_exception_only(error)[-1].strip()
        return {"kind": "failed", "error": last, "traceback": traceback.format_exc()}


def rate_limited(report: Report) -> Report:
    """A report that passes on at most four steps a second, so that short steps do not spend their time on it."""
    last = 0.0

    def limited(event: dict[str, Any]) -> None:
        nonlocal last
        if event["kind"] == "step" and time.monotonic() - last < 0.25:
            return
        last = time.monotonic()
        report(event)

    return limited


def resumes(run: Run, lost: int, outcome: Outcome, listen: Listen) -> bool:
    """Whether a run whose worker was killed ``lost`` times is resumed; if not, ``outcome`` gets the reason."""
    if lost < ATTEMPTS:
        listen(run, {"kind": "lost"})
        return True
    outcome[run.id] = f"its worker was killed {lost} times (out of memory?)"
    listen(run, {"kind": "failed", "error": outcome[run.id]})
    return False
