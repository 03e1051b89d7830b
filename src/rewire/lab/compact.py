"""Many runs in one small file: a line of JSON each, with settings, metrics, densities over time and environment.

What only a folder has is left out: checkpoints, masks, and the history of every rewiring. Columns take less room than
rows, so metrics and layers are stored as lists, and the counts of active weights only up to their last change.
"""

import json
from pathlib import Path
from typing import Any

from rewire.lab.results import Record, atomically, read_records, to_run
from rewire.lab.run import Run

SUFFIX = ".jsonl"
_LEFT_OUT = ("rewirings", "command")  # the command follows from the settings
_SECONDS = ("seconds", "cpu_seconds")


def collect(directory: Path, file: Path, *, add: bool = False) -> int:
    """Write the finished runs below a folder into one file, in a stable order; returns how many it holds then.

    With ``add``, the runs that the file holds already stay in it, unless the folder has them too.
    """
    lines = {line["id"]: line for line in _lines(file)} if add and file.exists() else {}
    lines |= {record.run.id: _line_of(record) for record in read_records(directory) if record.result is not None}
    with atomically(file) as output:
        for line in sorted(lines.values(), key=_order):
            output.write((json.dumps(line, separators=(",", ":")) + "\n").encode())
    return len(lines)


def _order(line: dict[str, Any]) -> tuple[str, str, str]:
    run = Run.from_dict(line["run"])
    return run.data, run.model, run.folder_name


def read_runs(path: Path) -> list[Record]:
    """The runs below a folder, or of a file that ``collect`` wrote."""
    return read_file(path) if path.is_file() else read_records(path)


def read_file(path: Path) -> list[Record]:
    """The runs of a file that ``collect`` wrote."""
    records = [from_line(line, path) for line in _lines(path)]
    if not records:
        raise FileNotFoundError(f"{path} holds no runs")
    return records


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, each checked to be a run."""
    lines = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        try:
            lines.append(json.loads(text))
            from_line(lines[-1], path)
        except (ValueError, LookupError, TypeError, AttributeError, StopIteration) as error:
            raise ValueError(f"line {number} of {path} is not a run ({error}): write the file again") from error
    return lines


def _line_of(record: Record) -> dict[str, Any]:
    """A finished run as one object; a half-copied folder gets an error that names it."""
    try:
        return to_line(record)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{record.folder} lacks epochs or parts of its result ({error!r}): copy it again, or remove it and run the "
            "sweep again"
        ) from error


def to_line(record: Record) -> dict[str, Any]:
    """A finished run as one object."""
    assert record.result is not None
    result = {name: value for name, value in record.result.items() if name not in _LEFT_OUT}
    result["layers"] = columns(result["layers"])
    result["seconds"] = round(result["seconds"], 2)
    metrics = columns(record.metrics)
    del metrics["epoch"]  # they are counted from 1
    for name in _SECONDS:
        if name in metrics:  # early versions of the lab did not measure those of the processor
            metrics[name] = [None if value is None else round(value, 2) for value in metrics[name]]
    metrics["nnz"] = _until_last_change(metrics["nnz"])
    return {"id": record.run.id, "run": record.run.to_dict(), "metrics": metrics, "result": result}


def from_line(line: dict[str, Any], path: Path) -> Record:
    """The run of a line; its folder is the file itself, so that it has no masks."""
    metrics, epochs = dict(line["metrics"]), len(line["metrics"]["loss"])
    nnz = metrics.pop("nnz")
    metrics["nnz"] = nnz + [nnz[-1]] * (epochs - len(nnz))
    lines = [{"epoch": epoch + 1} | row for epoch, row in enumerate(rows(metrics))]
    result = line["result"] | {"layers": rows(line["result"]["layers"])}
    return Record(to_run(line["run"]), path, "done", lines, result, None)


def columns(table: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """A list of rows as one list for each column; ``None`` where a row lacks it.

    >>> columns([{"a": 1, "b": 2}, {"a": 3}])
    {'a': [1, 3], 'b': [2, None]}
    """
    names = dict.fromkeys(name for row in table for name in row)
    return {name: [row.get(name) for row in table] for name in names}


def rows(table: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """What ``columns`` was called on; a row lacks what is ``None``.

    >>> rows({"a": [1, 3], "b": [2, None]})
    [{'a': 1, 'b': 2}, {'a': 3}]
    """
    length = len(next(iter(table.values())))
    return [{name: column[i] for name, column in table.items() if column[i] is not None} for i in range(length)]


def _until_last_change(values: list[Any]) -> list[Any]:
    """The list without the repetitions of its last value at its end."""
    end = len(values)
    while end > 1 and values[end - 1] == values[end - 2]:
        end -= 1
    return values[:end]
