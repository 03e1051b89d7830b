"""Runs on this machine: worker processes that carry out one run after the other.

A worker that is killed is replaced, and its run resumed from the last checkpoint. A run that fails is reported, and the
others continue. Stopping a sweep loses at most the current epoch of each run.
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

from rewire.lab.engines.work import Listen, Outcome, carry_out, rate_limited, resumes
from rewire.lab.results import folder_of
from rewire.lab.run import Run
from rewire.lab.training.trainer import Place


@dataclass
class Worker:
    """A worker process, this process's end of the pipe to it, and the run it carries out."""

    process: multiprocessing.process.BaseProcess
    pipe: "Connection[Any, Any]"
    run: Run | None = None


def run_all(runs: Sequence[Run], directory: Path, *, workers: int, place: Place, listen: Listen) -> Outcome:
    """Carry out all runs. The outcome has ``None`` for the id of each run that is done, or why it failed."""
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    waiting, attempts = deque(runs), dict.fromkeys((run.id for run in runs), 0)
    outcome: Outcome = {}
    pool = [_start_worker(workers, place) for _ in range(min(workers, len(runs)))]
    try:
        while len(outcome) < len(attempts):
            for worker in pool:
                if worker.run is None and waiting:
                    _assign(worker, waiting.popleft(), directory, listen)
            for worker in _with_events(pool):
                try:
                    _receive(worker, outcome, listen)
                except (EOFError, OSError):
                    run = worker.run
                    pool[pool.index(worker)] = _start_worker(workers, place)
                    if run is not None:
                        attempts[run.id] += 1
                        if resumes(run, attempts[run.id], outcome, listen):
                            waiting.appendleft(run)
    finally:
        _stop_workers(pool)
    return outcome


def threads_of(workers: int) -> int:
    """How many threads each of some workers computes with."""
    return max((os.cpu_count() or 1) // workers, 1)


def _start_worker(workers: int, place: Place) -> Worker:
    here, there = multiprocessing.get_context("spawn").Pipe()
    threads = threads_of(workers)
    # Not daemonic, so that a worker may start processes itself; it ends when the pipe is closed.
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(there, threads, place))
    process.start()
    there.close()
    return Worker(process, here)


def _assign(worker: Worker, run: Run, directory: Path, listen: Listen) -> None:
    worker.run = run
    listen(run, {"kind": "begin"})
    with suppress(OSError):  # if the worker has died, reading from the pipe will raise
        worker.pipe.send((run, folder_of(directory, run)))


def _with_events(workers: list[Worker]) -> list[Worker]:
    ready = wait([worker.pipe for worker in workers if worker.run is not None], timeout=1.0)
    return [worker for worker in workers if worker.pipe in ready]


def _receive(worker: Worker, outcome: Outcome, listen: Listen) -> None:
    event = worker.pipe.recv()
    run = worker.run
    assert run is not None
    if event["kind"] in ("done", "failed"):
        outcome[run.id] = event.get("error")
        worker.run = None
    listen(run, event)


def _stop_workers(workers: list[Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(timeout=10)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()


def _work(pipe: "Connection[Any, Any]", threads: int, place: Place) -> None:
    """What a worker process does: receive runs, carry them out, send events."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, _exit)
    torch.set_num_threads(threads)

    def report(event: dict[str, Any]) -> None:
        try:
            pipe.send(event)
        except OSError:
            raise SystemExit("the sweep has ended") from None

    while True:
        try:
            run, folder = pipe.recv()
        except (EOFError, OSError):
            return
        report({"kind": "start"})  # assigned earlier, perhaps before this process was ready
        report(carry_out(run, folder, place, rate_limited(report)))


def _exit(_signal: int, _frame: object) -> None:
    raise SystemExit(0)  # an exception, so that half-written files are removed on the way out
