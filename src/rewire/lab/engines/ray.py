"""Runs on a Ray cluster, or on a Ray of this machine's own: every run is a task with the resources it asks for.

A task whose worker or node is lost is submitted again and resumes from the run's checkpoint, on any node; that is why
the folder of results must be one that all nodes see. Stopping cancels what is under way and loses an epoch at most.
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
from rewire.lab.engines.work import Listen, Outcome, carry_out, goes_on, seldom
from rewire.lab.run import Run
from rewire.lab.training.train import Place

STORE = 100_000_000  # bytes of Ray's object store on this machine: only events pass through it


@dataclass(frozen=True)
class Resources:
    """What each run is given, and where."""

    address: str | None = None  # of the cluster; None starts a Ray of our own, for ``workers`` runs at once
    workers: int = 2
    cpus: float = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, not {self.workers}")
        if not self.cpus > 0:
            raise ValueError(f"a run needs some of a processor: cpus must be greater than 0, not {self.cpus}")
        if not self.gpus >= 0:
            raise ValueError(f"gpus must not be negative, and is {self.gpus}")
        for name in ("cpus", "gpus"):
            share = getattr(self, name)
            if share > 1 and share != int(share):
                raise ValueError(f"{name} must be a share of one, or a whole number, not {share}")


def run_all(runs: Sequence[Run], directory: Path, *, resources: Resources, place: Place, listen: Listen) -> Outcome:
    """Carry out all runs; for each id ``None`` when it is done, or why it is not."""
    need("ray", "ray")
    directory = directory.resolve()
    waiting, attempts = list(runs), dict.fromkeys((run.id for run in runs), 0)
    outcome: Outcome = {}
    with _connected(resources) as ray, _marked(directory) as mark:
        task = ray.remote(num_cpus=resources.cpus, num_gpus=resources.gpus, max_retries=0)(_work)
        tasks: dict[Any, Run] = {}
        try:
            while len(outcome) < len(attempts):
                threads = max(int(resources.cpus), 1)
                tasks |= {task.remote(run, directory / run.id, place, mark, threads): run for run in waiting}
                waiting = []
                for one in ray.wait(list(tasks), timeout=1.0)[0]:
                    run = tasks[one]
                    try:
                        _hear(run, ray.get(next(one)), outcome, listen)
                    except StopIteration:
                        del tasks[one]
                    except ray.exceptions.RayTaskError as error:  # before the run began: it could not be unpacked there
                        del tasks[one]
                        _hear(run, {"kind": "failed", "error": str(error)}, outcome, listen)
                    except ray.exceptions.RayError:
                        del tasks[one]
                        attempts[run.id] += 1
                        if run.id not in outcome and goes_on(run, attempts[run.id], outcome, listen):
                            waiting.append(run)
        finally:
            for one in tasks:
                ray.cancel(one, force=True)
    return outcome


def slots(resources: Resources, runs: int) -> int:
    """How many runs go on at once; of a cluster that grows by itself, at first."""
    if resources.address is None:
        return min(resources.workers, runs)
    with _connected(resources) as ray:
        have = ray.cluster_resources()
    room = [have.get("CPU", 0) / resources.cpus]
    room += [have.get("GPU", 0) / resources.gpus] if resources.gpus else []
    return max(min(int(min(room)), runs), 1)


def _hear(run: Run, event: dict[str, Any], outcome: Outcome, listen: Listen) -> None:
    if event["kind"] in ("done", "failed"):
        outcome[run.id] = event.get("error")
    listen(run, event)


@contextmanager
def _connected(resources: Resources) -> Iterator[Any]:
    """Ray: the one that this process is connected to already, that of the address, or a new one on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere, nor waited for
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
def _marked(directory: Path) -> Iterator[Path]:
    """A file by which a task knows that it sees the folder of results and not another one of the same name."""
    directory.mkdir(parents=True, exist_ok=True)
    mark = directory / f".seen-by-all-{uuid.uuid4().hex}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def _work(run: Run, folder: Path, place: Place, mark: Path, threads: int) -> Iterator[dict[str, Any]]:
    """The task: what the run reports, as it reports it. Ray takes one event after the other from this generator."""
    import torch

    yield {"kind": "begin", "pid": os.getpid(), "node": socket.gethostname()}
    if not mark.exists():
        where = f"{mark.parent} on {socket.gethostname()} is not the folder that the sweep writes to"
        yield {"kind": "failed", "error": f"{where}: give --out a folder that every node of the cluster sees"}
        return
    torch.set_num_threads(threads)
    events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    # A thread, because training reports by a call while Ray asks by next(). It ends with the process.
    training = threading.Thread(
        target=lambda: events.put(carry_out(run, folder, place, seldom(events.put))), daemon=True
    )
    training.start()
    while True:
        event = events.get()
        yield event
        if event["kind"] in ("done", "failed"):
            return
