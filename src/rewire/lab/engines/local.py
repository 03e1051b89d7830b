"""Runs on this machine: worker processes that take one run after the other.

A worker that is killed is replaced and its run resumed from the last checkpoint; a run that fails is reported and the
rest goes on; stopping loses no more than the epoch under way.
"""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from rewire.lab.engines.work import Listen, Outcome, carry_out, goes_on, seldom
from rewire.lab.run import Run
from rewire.lab.training.train import Place


@dataclass
class Worker:
    """One process, its end of the line, and what it is doing."""

    process: multiprocessing.process.BaseProcess
    line: "Connection[Any, Any]"
    run: Run | None = None


def run_all(runs: Sequence[Run], directory: Path, *, workers: int, place: Place, listen: Listen) -> Outcome:
    """Carry out all runs; for each id ``None`` when it is done, or why it is not."""
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    waiting, attempts = deque(runs), dict.fromkeys((run.id for run in runs), 0)
    outcome: Outcome = {}
    team = [_hire(workers, place) for _ in range(min(workers, len(runs)))]
    try:
        while len(outcome) < len(attempts):
            for worker in team:
                if worker.run is None and waiting:
                    _assign(worker, waiting.popleft(), directory, listen)
            for worker in _with_news(team):
                try:
                    _hear(worker, outcome, listen)
                except (EOFError, OSError):
                    run = worker.run
                    team[team.index(worker)] = _hire(workers, place)
                    if run is not None:
                        attempts[run.id] += 1
                        if goes_on(run, attempts[run.id], outcome, listen):
                            waiting.appendleft(run)
    finally:
        _dismiss(team)
    return outcome


def _hire(workers: int, place: Place) -> Worker:
    here, there = multiprocessing.get_context("spawn").Pipe()
    threads = max((os.cpu_count() or 1) // workers, 1)
    # Not daemonic, so that a worker may have helpers; it ends by itself when this process does.
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(there, threads, place))
    process.start()
    there.close()
    return Worker(process, here)


def _assign(worker: Worker, run: Run, directory: Path, listen: Listen) -> None:
    worker.run = run
    listen(run, {"kind": "begin"})
    with suppress(OSError):  # if it died meanwhile, its end of the line will tell
        worker.line.send((run, directory / run.id))


def _with_news(team: list[Worker]) -> list[Worker]:
    ready = wait([worker.line for worker in team if worker.run is not None], timeout=1.0)
    return [worker for worker in team if worker.line in ready]


def _hear(worker: Worker, outcome: Outcome, listen: Listen) -> None:
    event = worker.line.recv()
    run = worker.run
    assert run is not None
    if event["kind"] in ("done", "failed"):
        outcome[run.id] = event.get("error")
        worker.run = None
    listen(run, event)


def _dismiss(team: list[Worker]) -> None:
    for worker in team:
        worker.process.terminate()
    for worker in team:
        worker.process.join(timeout=10)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.line.close()


def _work(line: "Connection[Any, Any]", threads: int, place: Place) -> None:
    """The life of a worker."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, _leave)
    torch.set_num_threads(threads)

    def report(event: dict[str, Any]) -> None:
        try:
            line.send(event)
        except OSError:
            raise SystemExit("the sweep has ended") from None

    while True:
        try:
            run, folder = line.recv()
        except (EOFError, OSError):
            return
        report(carry_out(run, folder, place, seldom(report)))


def _leave(_signal: int, _frame: object) -> None:
    raise SystemExit(0)  # an exception, so that half-written files are removed on the way out
