"""Runs on a Ray cluster, or on a Ray that is started on this machine: every run is a task with resources of its own.

A task whose worker or node dies is submitted again and resumes from the run's checkpoint, on any node. The folder of
results, and the files of own code, must therefore be on a file system that all nodes see. Stopping a sweep cancels the
tasks and loses at most the current epoch of each run.
"""

import math
import os
import queue
import socket
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewire._extras import need
from rewire.lab.engines.work import Listen, Outcome, carry_out, rate_limited, resumes
from rewire.lab.results import folder_of
from rewire.lab.run import Run
from rewire.lab.training.trainer import Place

STORE = 100_000_000  # bytes of Ray's object store on this machine: only events pass through it


@dataclass(frozen=True)
class Resources:
    """The resources of each run, and the cluster."""

    address: str | None = None  # of the cluster; None starts Ray on this machine, for ``workers`` runs at once
    workers: int = 2
    cpus: float = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, not {self.workers}")
        if not self.cpus > 0:
            raise ValueError(f"cpus must be greater than 0, not {self.cpus}")
        if not self.gpus >= 0:
            raise ValueError(f"gpus must not be negative, and is {self.gpus}")
        for name in ("cpus", "gpus"):
            share = getattr(self, name)
            if share > 1 and share != int(share):
                raise ValueError(f"{name} must be a fraction below 1 or a whole number, not {share}")


def run_all(runs: Sequence[Run], directory: Path, *, resources: Resources, place: Place, listen: Listen) -> Outcome:
    """Carry out all runs. The outcome has ``None`` for the id of each run that is done, or why it failed."""
    need("ray", "ray")
    directory = directory.resolve()
    waiting, attempts = list(runs), dict.fromkeys((run.id for run in runs), 0)
    outcome: Outcome = {}
    with _connected(resources) as ray, _marker(directory) as mark:
        task = ray.remote(num_cpus=resources.cpus, num_gpus=resources.gpus, max_retries=0)(_work)
        tasks: dict[Any, Run] = {}
        try:
            while len(outcome) < len(attempts):
                threads = max(int(resources.cpus), 1)
                tasks |= {task.remote(run, folder_of(directory, run), place, mark, threads): run for run in waiting}
                waiting = []
                for generator in ray.wait(list(tasks), timeout=1.0)[0]:
                    run = tasks[generator]
                    try:
                        _receive(run, ray.get(next(generator)), outcome, listen)
                    except StopIteration:
                        del tasks[generator]
                    except ray.exceptions.RayTaskError as error:  # the run could not be unpickled there
                        del tasks[generator]
                        _receive(run, {"kind": "failed", "error": str(error)}, outcome, listen)
                    except ray.exceptions.RayError:
                        del tasks[generator]
                        attempts[run.id] += 1
                        if run.id not in outcome and resumes(run, attempts[run.id], outcome, listen):
                            waiting.append(run)
        finally:
            for generator in tasks:
                ray.cancel(generator, force=True)
    return outcome


def slots(resources: Resources, runs: int) -> int:
    """How many runs are carried out at once; on a cluster that scales itself, at first."""
    if resources.address is None:
        return min(resources.workers, runs)
    with _connected(resources) as ray:
        have = ray.cluster_resources()
    room = [have.get("CPU", 0) / resources.cpus]
    room += [have.get("GPU", 0) / resources.gpus] if resources.gpus else []
    return max(min(int(min(room)), runs), 1)


def _receive(run: Run, event: dict[str, Any], outcome: Outcome, listen: Listen) -> None:
    if event["kind"] in ("done", "failed"):
        outcome[run.id] = event.get("error")
    listen(run, event)


@contextmanager
def _connected(resources: Resources) -> Iterator[Any]:
    """Ray: an existing connection of this process, the cluster of the address, or a new Ray on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage statistics
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if resources.address is None:
        cpus = math.ceil(resources.workers * resources.cpus)
        options |= {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": STORE}
    try:
        ray.init(address=resources.address or "local", **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"the Ray cluster at {resources.address}" if resources.address else "a Ray on this machine"
        raise ValueError(f"cannot reach {where}: {str(error).splitlines()[0]}") from error
    try:
        have = ray.cluster_resources().get("GPU", 0)
        if resources.address is None and resources.gpus > have:
            raise ValueError(f"each run asks for {resources.gpus} GPUs, and Ray finds {have:g} on this machine")
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _marker(directory: Path) -> Iterator[Path]:
    """A file that a task looks for, to make sure that its node sees the same folder of results."""
    directory.mkdir(parents=True, exist_ok=True)
    mark = directory / f".seen-by-all-{uuid.uuid4().hex}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def _work(run: Run, folder: Path, place: Place, mark: Path, threads: int) -> Iterator[dict[str, Any]]:
    """The task: a generator of the run's events, which Ray passes on one by one."""
    import torch

    yield {"kind": "begin", "pid": os.getpid(), "node": socket.gethostname()}
    if not mark.exists():
        where = f"{mark.parent} on {socket.gethostname()} is not the folder that the sweep writes to"
        yield {"kind": "failed", "error": f"{where}: give --out a folder that every node of the cluster sees"}
        return
    torch.set_num_threads(threads)
    events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    # Training calls a function for each event, and Ray asks for the next one: a thread connects the two.
    training = threading.Thread(
        target=lambda: events.put(carry_out(run, folder, place, rate_limited(events.put))), daemon=True
    )
    training.start()
    while True:
        event = events.get()
        yield event
        if event["kind"] in ("done", "failed"):
            return
