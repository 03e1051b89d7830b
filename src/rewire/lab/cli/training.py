"""``rewire train``: one run, with its progress and a summary."""

import warnings
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from rewire.lab.cli import arguments as cli
from rewire.lab.cli.display import Display
from rewire.lab.cli.terminal import console
from rewire.lab.results import folder_of, read_metrics, read_record
from rewire.lab.run import Run
from rewire.lab.training.ranks import RankGroup, joined_ranks
from rewire.lab.training.train import train as carry_out
from rewire.lab.training.trainer import Place


def train(command: "cli.Train", words: str) -> None:
    """Train a new run, or continue one."""
    refuse_device(command.device)
    with joined_ranks(command.device, command.fsdp) as (ranks, device):
        run, folder = _run_and_folder(command, ranks)
        other, epochs = ranks.on_first(lambda: _content(folder))
        if other not in (None, run):
            raise ValueError(f"{folder} holds another run ({other.label}): give another --out")
        place = Place(device, command.data_dir, command.tensorboard, ranks, command.film)
        screen = console if ranks.first else Console(quiet=True)
        with Display([run], 1, {run.id: epochs}, screen) as display, warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: screen.print(f"[yellow]warning:[/] {message}", highlight=False)
            display.listen(run, {"kind": "begin"})
            result = carry_out(run, folder, place, lambda event: display.listen(run, event), keep_refused=False)
            display.listen(run, {"kind": "done", "accuracy": result["accuracy"]})
        screen.print(summary(result, folder))


def _run_and_folder(command: "cli.Train", ranks: RankGroup) -> tuple[Run, Path]:
    resumed = command.resume
    if resumed is None:
        return command.run, command.out or folder_of(cli.RUNS / "train", command.run)
    run = ranks.on_first(lambda: _run_of(resumed))
    if command.run not in (Run(), run):
        raise ValueError(f"--resume takes the settings of {resumed} ({run.label}): leave the others out")
    return run, resumed


def _run_of(folder: Path) -> Run:
    if not (folder / "run.json").exists():
        raise FileNotFoundError(f"{folder} is not the folder of a run: it has no run.json")
    return read_record(folder).run


def _content(folder: Path) -> tuple[Run | None, int]:
    """The run that a folder holds, if it holds one, and how many of its epochs are done."""
    return read_record(folder).run if (folder / "run.json").exists() else None, len(read_metrics(folder))


def summary(result: dict[str, Any], folder: Path) -> Table:
    """The main numbers of a finished run."""
    table = Table(show_header=False, box=None, pad_edge=False)
    layers, flops = result["layers"], result["flops"]
    empty, neurons = (sum(layer[key] for layer in layers) for key in ("empty_neurons", "neurons"))
    rows = {
        "accuracy": f"{result['accuracy']:.2%} (last epoch, test set)",
        "weights": f"{result['nnz']:,} of {result['weights']:,} ({result['density']:.2%})",
        "inference": f"{flops['inference']:,} multiply-adds, {flops['ratio']:.3f} of dense",
    }
    if "training_ratio" in flops:  # results of earlier versions have neither this nor the positions explored
        rows["training"] = f"{flops['training_ratio']:.3f} of the multiply-adds of dense training, in as many steps"
    if explored := result.get("explored"):
        rows["explored"] = f"{explored:,} positions were ever active ({explored / result['weights']:.2%})"
    rows |= {
        "empty neurons": f"{empty:,} of {neurons:,}",
        "rewirings": f"{len(result['rewirings'])}",
        "written to": str(folder),
    }
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/]", value)
    return table


def refuse_device(name: str) -> None:
    """Raise if torch cannot use a device here."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device {name} cannot be used here ({reason}): use cpu, which always works") from error
