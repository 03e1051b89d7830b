"""What a run leaves on disk, written atomically and readable by other tools: JSON, JSON lines, safetensors.

The folder of a run, ``runs/<experiment>/<its name>/``, holds::

    run.json                 the Run, and the versions and the machine it began with
    metrics.jsonl            one line per epoch
    checkpoint.safetensors   everything to resume from
    topology.safetensors     the final masks, by layer
    result.json              the outcome; a run with this file is finished and never trained again
    error.json               the traceback of the last failure, if it failed
    lock                     locked by the process that trains it

The folder of a sweep holds ``sweep.json`` with the runs that are planned, and a folder for each run that has begun.
"""

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from rewire.io.files import UNFINISHED, unfinished
from rewire.lab.run import Run

Status = Literal["done", "running", "failed", "planned"]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class Record:
    """A run as it is on disk; one that is only planned has no folder yet."""

    run: Run
    folder: Path
    status: Status
    metrics: list[dict[str, Any]]  # epoch, loss, accuracy, lr, seconds, nnz (per layer)
    result: dict[str, Any] | None
    error: str | None

    @property
    def missing_code(self) -> str:
        """What is wrong with the run's own code, such as ``drop.py:mine is missing``; nothing if all is there."""
        if not self.run.code:
            return ""
        from rewire.lab.names import state_of  # imports torch, which runs of the library itself need not wait for

        states = ((code.name, state_of(code)) for code in self.run.code)
        return ", ".join(f"{name} {state}" for name, state in states if state)


class BusyError(RuntimeError):
    """Another process trains this run."""


def folder_of(directory: Path, run: Run) -> Path:
    """The folder of a run in the folder of its sweep. Earlier versions named it after the run's id."""
    old = directory / run.id
    return old if old.exists() else directory / run.folder_name


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Lock a run's folder. The lock ends with the process; files that a killed process left unfinished are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(_busy(folder)) from error
        for leftover in folder.glob(f"{UNFINISHED}*"):
            leftover.unlink(missing_ok=True)
        yield


def refuse_busy(folder: Path) -> None:
    """Raise if another process has locked a run's folder."""
    if _is_locked(folder):
        raise BusyError(_busy(folder))


def _busy(folder: Path) -> str:
    return f"another process works on {folder}: wait for it or stop it"


@contextmanager
def atomically(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when it is complete, or not at all."""
    with unfinished(path) as temporary, temporary.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically."""
    with atomically(path) as file:
        file.write(json.dumps(_strict(content), indent=1, allow_nan=False).encode())


def write_with(path: Path, write: Callable[[str], None]) -> None:
    """Write atomically with a function that takes a file name (matplotlib, safetensors)."""
    with unfinished(path) as temporary:
        write(str(temporary))


def write_metrics(folder: Path, metrics: list[dict[str, Any]]) -> None:
    """Write all epochs so far, so that a resumed run leaves no lines of epochs that it trains again."""
    with atomically(folder / "metrics.jsonl") as file:
        file.write("".join(json.dumps(_strict(line), allow_nan=False) + "\n" for line in metrics).encode())


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The epochs that were written."""
    path = folder / "metrics.jsonl"
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}): remove its folder and run the sweep again") from error
    if not all(isinstance(line, dict) for line in lines):
        raise ValueError(f"{path} has lines that are no epochs: remove its folder and run the sweep again")
    return lines


def read_record(folder: Path) -> Record:
    """Read one run; a damaged folder gets an error that names the file."""
    about, files = folder / "run.json", (folder / "result.json", folder / "error.json")
    try:
        run = to_run(read_json(about).get("run"))
    except (TypeError, ValueError) as problem:
        if str(about) in str(problem):
            raise
        raise ValueError(f"{about} is not of a run of this lab ({problem}): move it or remove its folder") from problem
    result, error = (read_json(file) if file.exists() else None for file in files)
    if result is not None and not isinstance(result.get("accuracy"), (int, float)):
        raise ValueError(f"{files[0]} is not a result (it has no accuracy): remove its folder and run the sweep again")
    if error is not None and not isinstance(error.get("traceback"), str):
        raise ValueError(f"{files[1]} is not of a failed run (it has no traceback): remove it")
    trace = error["traceback"] if error is not None else None
    return Record(run, folder, _status(folder, result, trace), read_metrics(folder), result, trace)


def to_run(values: Any) -> Run:
    """The run of stored settings; settings of another kind than a run's are refused, as other programs write them."""
    if not isinstance(values, dict):
        raise ValueError("it has no settings under 'run'")
    run = Run.from_dict(values)
    for field in fields(Run):
        kinds = {float: (int, float), type(None): (int, float, str, type(None))}.get(type(field.default))
        if not isinstance(getattr(run, field.name), kinds or type(field.default)):
            raise ValueError(f"{field.name} is {getattr(run, field.name)!r}")
    return run


def read_records(directory: Path) -> list[Record]:
    """All runs below a directory that have begun, in a stable order; an error if it holds none."""
    return _read_all(directory, planned=False)


def read_plan(directory: Path) -> list[Record]:
    """All runs below a directory, those that a sweep has planned included."""
    return _read_all(directory, planned=True)


def _read_all(directory: Path, *, planned: bool) -> list[Record]:
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory} is not a folder of results: it does not exist")
    # Other programs write files of this name too: those are passed over, unless their folder was asked for.
    paths = [
        path for path in sorted(directory.rglob("run.json")) if path.parent == directory or "run" in read_json(path)
    ]
    records = [read_record(path.parent) for path in paths]
    if planned:
        begun = {record.run.id for record in records}
        for path in sorted(directory.rglob("sweep.json")):
            runs = [Run.from_dict(values) for values in read_json(path).get("plan", [])]
            records += [
                Record(run, folder_of(path.parent, run), "planned", [], None, None)
                for run in runs
                if run.id not in begun
            ]
    if not records:
        raise FileNotFoundError(f"{directory} holds no runs (no run.json below it): give the folder of a sweep")
    return records


def _status(folder: Path, result: object, error: object) -> Status:
    if result is not None:
        return "done"
    if _is_locked(folder):
        return "running"
    return "failed" if error is not None else "planned"


def _strict(value: Any) -> Any:
    """The same without numbers that JSON does not have: a loss of NaN or infinity becomes null."""
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
