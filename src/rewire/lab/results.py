"""What a run leaves on disk, written atomically and readable by other tools: JSON, JSON lines, safetensors.

``runs/<experiment>/<id>/`` holds::

    run.json                 the Run, the version of the library and when it began
    metrics.jsonl            one line per epoch
    checkpoint.safetensors   to go on from, while the run is not finished
    topology.safetensors     the final masks, by layer
    result.json              the outcome; a run with this file is finished and never repeated
    error.json               the traceback of the last failure, if it failed
    lock                     held by the process that works on it
"""

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from rewire.io.files import UNFINISHED, unfinished
from rewire.lab.run import Run

Status = Literal["done", "running", "failed", "waiting"]


@dataclass(frozen=True)
class Record:
    """A run as found on disk."""

    run: Run
    folder: Path
    status: Status
    metrics: list[dict[str, Any]]  # epoch, loss, accuracy, lr, seconds, nnz (per layer)
    result: dict[str, Any] | None
    error: str | None


class BusyError(RuntimeError):
    """Another process works on this run."""


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Work on a run alone. The lock goes with the process, however it ends; what a killed one left half is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(f"another process works on {folder}: wait for it or stop it") from error
        for leftover in folder.glob(f"{UNFINISHED}*"):
            leftover.unlink(missing_ok=True)
        yield


@contextmanager
def atomically(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when it is complete, or not at all."""
    with unfinished(path) as temporary, temporary.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Any) -> None:
    """JSON, atomically."""
    with atomically(path) as file:
        file.write(json.dumps(_strict(content), indent=1, allow_nan=False).encode())


def write_with(path: Path, write: Callable[[str], None]) -> None:
    """Atomically, by a function that wants a file name (matplotlib, safetensors)."""
    with unfinished(path) as temporary:
        write(str(temporary))


def write_metrics(folder: Path, metrics: list[dict[str, Any]]) -> None:
    """All epochs so far: a resumed run must not leave lines of epochs that it repeats."""
    with atomically(folder / "metrics.jsonl") as file:
        file.write("".join(json.dumps(_strict(line), allow_nan=False) + "\n" for line in metrics).encode())


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The epochs that were written."""
    path = folder / "metrics.jsonl"
    try:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}): remove its folder and run the sweep again") from error


def read_record(folder: Path) -> Record:
    """One run; a damaged folder gets an error that names the file."""
    run = Run.from_dict(read_json(folder / "run.json")["run"])
    result = read_json(folder / "result.json") if (folder / "result.json").exists() else None
    error = read_json(folder / "error.json")["traceback"] if (folder / "error.json").exists() else None
    return Record(run, folder, _status(folder, result, error), read_metrics(folder), result, error)


def read_records(directory: Path) -> list[Record]:
    """All runs below a directory, in a stable order; an error if it holds none."""
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory} is not a folder of results: it does not exist")
    folders = sorted(path.parent for path in directory.rglob("run.json"))
    if not folders:
        raise FileNotFoundError(f"{directory} holds no runs (no run.json below it): give the folder of a sweep")
    return [read_record(folder) for folder in folders]


def _status(folder: Path, result: object, error: object) -> Status:
    if result is not None:
        return "done"
    if _is_locked(folder):
        return "running"
    return "failed" if error is not None else "waiting"


def _strict(value: Any) -> Any:
    """The same without numbers that JSON does not have: a diverged loss becomes null."""
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_locked(folder: Path) -> bool:
    if not (folder / "lock").exists():
        return False
    with (folder / "lock").open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def read_json(path: Path) -> dict[str, Any]:
    """An object from a JSON file; a damaged one gets an error that names it."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}): remove its folder and run the sweep again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__} instead of an object: remove its folder")
    return content
