"""What each command of ``rewire`` does."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from rewire._extras import need
from rewire._lookup import choose
from rewire.lab.cli import arguments as cli
from rewire.lab.cli import shipping
from rewire.lab.cli.display import Display
from rewire.lab.data.datasets import DATASETS, fetch
from rewire.lab.engines import local
from rewire.lab.engines.work import Listen, Outcome
from rewire.lab.environment import environment
from rewire.lab.experiments import runs_of
from rewire.lab.report.render import to_rich
from rewire.lab.report.report import write_report
from rewire.lab.report.tables import tables
from rewire.lab.results import read_json, read_metrics, read_record, read_records, write_json
from rewire.lab.run import DENSE, Run
from rewire.lab.training.ranks import gathered, launched
from rewire.lab.training.train import Place
from rewire.lab.training.train import train as carry_out
from rewire.methods import METHODS

console = Console()
TABLES = {"demo": "table1", "table1": "table", "table3": "table3", "table4": "table4"}  # printed by a sweep
TABLES |= {"drop": "", "stores": "table1"}


def train(command: "cli.Train", words: str) -> None:
    """One run, with its progress and a summary."""
    _refuse_device(command.device)
    with gathered(command.device, command.fsdp) as (team, device):
        run, folder = command.run, command.out or cli.RUNS / "train" / command.run.id
        if (resumed := command.resume) is not None:
            folder, run = resumed, team.once(lambda: _run_of(resumed))
            if command.run not in (type(run)(), run):
                raise ValueError(f"--resume takes the settings of {folder} ({run.label}): leave the others out")
        other, epochs = team.once(lambda: _found(folder))
        if other not in (None, run):
            raise ValueError(f"{folder} holds another run ({other.label}): give another --out")
        place = Place(device, command.data_dir, command.tensorboard, team)
        screen = console if team.first else Console(quiet=True)
        with Display([run], 1, {run.id: epochs}, screen) as display, warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: screen.print(f"[yellow]warning:[/] {message}", highlight=False)
            display.listen(run, {"kind": "begin"})
            result = carry_out(run, folder, place, lambda event: display.listen(run, event))
            display.listen(run, {"kind": "done", "accuracy": result["accuracy"]})
        screen.print(summary(result, folder))


def _run_of(folder: Path) -> Run:
    if not (folder / "run.json").exists():
        raise FileNotFoundError(f"{folder} is not the folder of a run: it has no run.json")
    return read_record(folder).run


def _found(folder: Path) -> tuple[Run | None, int]:
    """The run that a folder holds, if it holds one, and how many epochs of it are done."""
    return read_record(folder).run if (folder / "run.json").exists() else None, len(read_metrics(folder))


def summary(result: dict[str, Any], folder: Path) -> Table:
    """The figures of a finished run."""
    table = Table(show_header=False, box=None, pad_edge=False)
    layers, flops = result["layers"], result["flops"]
    empty, neurons = (sum(layer[key] for layer in layers) for key in ("empty_neurons", "neurons"))
    rows = {
        "accuracy": f"{result['accuracy']:.2%} (last epoch, test set)",
        "weights": f"{result['nnz']:,} of {result['weights']:,} ({result['density']:.2%})",
        "inference": f"{flops['inference']:,} multiply-adds, {flops['ratio']:.3f} of dense",
    }
    if "training_ratio" in flops:  # results of earlier versions do not have it, nor what was explored
        rows["training"] = f"{flops['training_ratio']:.3f} of the multiply-adds of dense training, in as many steps"
    if explored := result.get("explored"):
        rows["explored"] = f"{explored:,} positions were ever active ({explored / result['weights']:.2%})"
    rows |= {
        "empty neurons": f"{empty:,} of {neurons:,}",
        "rewirings": f"{len(result['rewirings'])}",
        "written to": str(folder),
    }
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/]", value)
    return table


def sweep(command: "cli.Sweep", words: str) -> None:
    """All runs of an experiment, then its report."""
    if launched():
        raise ValueError("a sweep starts its own processes: call it without torchrun (torchrun is for rewire train)")
    runs = [
        run if command.store is None or run.method == DENSE else replace(run, store=command.store)  # dense: no store
        for run in runs_of(command.name, command.scale)
    ]
    runs = list(dict.fromkeys(runs))
    carry_out_all, workers = _engine(command, len(runs))
    directory = command.out or cli.RUNS / f"{command.name}-{command.scale}"
    about = {
        "experiment": command.name,
        "scale": command.scale,
        "command": words,
        "environment": environment(command.device),
        "runs": [run.id for run in runs],
    }
    write_json(directory / "sweep.json", about)
    done = {run.id: len(read_metrics(directory / run.id)) for run in runs}
    waiting = [run for run in runs if not (directory / run.id / "result.json").exists()]
    console.print(f"{len(runs)} runs in {directory}, {len(runs) - len(waiting)} of them done", highlight=False)
    place = Place(command.device, command.data_dir, command.tensorboard)
    failed: dict[str, str] = {}
    if waiting:
        with Display(runs, workers, done, console) as display:
            outcome = carry_out_all(waiting, directory, place, display.listen)
        failed = {key: why for key, why in outcome.items() if why is not None}
    show_report(directory, None, only=TABLES[command.name])
    if failed:
        first = next(iter(failed))
        trace = directory / first / "error.json"
        shown = read_json(trace)["traceback"] if trace.exists() else failed[first]
        raise ValueError(f"{len(failed)} of {len(runs)} runs failed; the first one, {directory / first}:\n{shown}")


def _engine(command: "cli.Sweep", runs: int) -> tuple[Callable[[Sequence[Run], Path, Place, Listen], Outcome], int]:
    """Who carries the runs out, and how many at once."""
    if command.workers < 1:
        raise ValueError(f"--workers must be at least 1, not {command.workers}")
    if command.engine == "local":
        if command.address is not None or command.gpus is not None:
            raise ValueError("--address and --gpus are for --engine ray; the local engine uses this machine")
        _refuse_device(command.device)
        return lambda waiting, directory, place, listen: local.run_all(
            waiting, directory, workers=command.workers, place=place, listen=listen
        ), command.workers
    need("ray", "ray")
    from rewire.lab.engines import ray

    if command.device.startswith("cuda:"):
        raise ValueError(f"Ray hands out the GPUs itself: --device cuda, not {command.device}")
    if command.address is None:
        _refuse_device(command.device)
    gpus = command.gpus if command.gpus is not None else float(command.device == "cuda")
    resources = ray.Resources(command.address, command.workers, command.cpus, gpus)
    return lambda waiting, directory, place, listen: ray.run_all(
        waiting, directory, resources=resources, place=place, listen=listen
    ), ray.slots(resources, runs)


def report(command: "cli.Report", words: str) -> None:
    """Tables and figures of what is there."""
    show_report(command.directory, command.layer)


def show_report(directory: Path, layer: str | None, only: str = "") -> None:
    """Print the tables (those whose names begin so) and write the report, which has them all."""
    for table in tables(read_records(directory)):
        if table.name.startswith(only):
            console.print(to_rich(table))
    path = write_report(directory, layer=layer)
    console.print(f"\nreport: {path}", highlight=False, soft_wrap=True)


def data(command: "cli.Data", words: str) -> None:
    """List or fetch."""
    if command.action == "fetch":
        if command.name is None:
            raise ValueError(f"which data set? rewire data fetch NAME, with NAME one of {', '.join(DATASETS)}")
        choose("data set", command.name, DATASETS)
        path = fetch(command.name)
        console.print(f"{command.name} is in {path}" if path else f"{command.name} is embedded: nothing to fetch")
        return
    table = Table("name", "images", "classes", "shape", "download", "about")
    for source in DATASETS.values():
        size = f"{source.download / 1e6:,.0f} MB" if source.download else "embedded"
        shape = "x".join(map(str, source.shape))
        table.add_row(
            source.name, f"{source.train:,} + {source.test:,}", str(source.classes), shape, size, source.about
        )
    console.print(table)


def methods(command: "cli.Methods", words: str) -> None:
    """The methods and their parts."""
    table = Table("name", "density", "drop", "allocate", "grow", "what it does")
    for name, function in METHODS.items():
        method = function(density=0.03, every=100, until=1000)
        about = " ".join((function.__doc__ or "").split("\n\n")[0].split())
        parts = (repr(part).replace("Signal.", "") for part in (method.drop, method.allocate, method.grow))
        table.add_row(name, type(method.density).__name__.lower(), *parts, about)
    console.print(table)


def runs(command: "cli.Runs", words: str) -> None:
    """The state of every run."""
    table = Table("run", "status", "epochs", "accuracy", "id")
    records = read_records(command.directory)
    for record in records:
        accuracy = f"{record.metrics[-1]['accuracy']:.2%}" if record.metrics else ""
        epochs = f"{len(record.metrics)}/{record.run.epochs}"
        table.add_row(record.run.label, record.status, epochs, accuracy, record.run.id)
    console.print(table)
    counts = {status: sum(r.status == status for r in records) for status in ("done", "running", "failed", "waiting")}
    console.print(", ".join(f"{count} {status}" for status, count in counts.items()))


def _refuse_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device {name} cannot be used here ({reason}); cpu always can") from error


RUN: dict[type, Callable[[Any, str], None]] = {
    cli.Train: train,
    cli.Sweep: sweep,
    cli.Report: report,
    cli.Data: data,
    cli.Methods: methods,
    cli.Runs: runs,
    cli.Inspect: shipping.inspect,
    cli.Shrink: shipping.shrink,
    cli.Export: shipping.export,
}
