"""``rewire sweep``: all runs of an experiment, then its report."""

import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rewire._extras import need
from rewire._lookup import choose
from rewire.attach import STORES
from rewire.lab.cli import arguments as cli
from rewire.lab.cli.display import Display
from rewire.lab.cli.planning import measure, show_plan
from rewire.lab.cli.reporting import show_report
from rewire.lab.cli.terminal import console
from rewire.lab.cli.training import refuse_device
from rewire.lab.compact import read_runs
from rewire.lab.engines import local
from rewire.lab.engines.work import Listen, Outcome
from rewire.lab.environment import environment
from rewire.lab.experiments.grid import changed
from rewire.lab.experiments.registry import EXPERIMENTS, Experiment, runs_of
from rewire.lab.references import code_of, file_label
from rewire.lab.results import folder_of, read_json, read_metrics, write_json
from rewire.lab.run import Run
from rewire.lab.training.ranks import under_torchrun
from rewire.lab.training.trainer import Place

Engine = Callable[[Sequence[Run], Path, Place, Listen], Outcome]


def sweep(command: "cli.Sweep", words: str) -> None:
    """Carry out the runs that are not done, and report all of them."""
    if under_torchrun():
        raise ValueError("a sweep starts its own processes: call it without torchrun (torchrun is for rewire train)")
    experiment, runs = EXPERIMENTS.find(command.name), _without_known(planned_runs(command), command.skip)
    directory = command.out or cli.RUNS / _folder_name(experiment, command)
    done = [run for run in runs if (folder_of(directory, run) / "result.json").exists()]
    if command.dry_run:
        threads = local.threads_of(command.workers) if command.engine == "local" else round(command.cpus)
        seconds = measure(runs, Place(command.device, command.data_dir), threads) if command.measure else None
        show_plan(runs, done, directory, seconds, threads)
        return
    if command.measure:
        raise ValueError("--measure is for --dry-run: add it, or leave --measure out")
    carry_out_all, workers = _engine(command, len(runs))
    write_json(directory / "sweep.json", _about(experiment, command, runs, words))
    epochs = {run.id: len(read_metrics(folder_of(directory, run))) for run in runs}
    waiting = [run for run in runs if run not in done]
    console.print(f"{len(runs)} runs in {directory}, {len(done)} of them done", highlight=False, soft_wrap=True)
    place = Place(command.device, command.data_dir, command.tensorboard, film=command.film)
    failed: dict[str, str] = {}
    if waiting:
        with Display(runs, workers, epochs, console) as display:
            outcome = carry_out_all(waiting, directory, place, display.listen)
        failed = {key: reason for key, reason in outcome.items() if reason is not None}
    show_report(directory, only=experiment.tables)
    if failed:
        _refuse_failed(failed, runs, directory)


def planned_runs(command: "cli.Sweep") -> list[Run]:
    """The runs of the experiment, with the changes that the command asks for."""
    runs, changes = runs_of(command.name, command.scale), dict(_setting(assignment) for assignment in command.set)
    if command.epochs is not None:
        changes["epochs"] = command.epochs
    if command.store is not None:
        choose("store", command.store, STORES)
        changes["store"] = command.store
    runs = [changed(run, changes) for run in runs] if changes else runs
    if command.seeds is not None:
        if command.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, not {command.seeds}")
        configurations = list(dict.fromkeys(replace(run, seed=0) for run in runs))
        runs = [replace(run, seed=seed) for seed in range(command.seeds) for run in configurations]
    return list(dict.fromkeys(runs))


def _without_known(runs: list[Run], known: Path | None) -> list[Run]:
    """The runs that are not finished elsewhere."""
    if known is None:
        return runs
    finished = {record.run.id for record in read_runs(known) if record.result is not None}
    left = [run for run in runs if run.id not in finished]
    if not left:
        raise ValueError(f"all {len(runs)} runs are finished in {known}: leave --skip out to carry them out again")
    known_runs = len(runs) - len(left)
    console.print(f"{known_runs} of {len(runs)} runs are finished in {known}", highlight=False, soft_wrap=True)
    return left


def _setting(text: str) -> tuple[str, Any]:
    """``width=0.5`` as the name and the value of a field of a run."""
    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals:
        raise ValueError(f"--set {text} must be NAME=VALUE, as in --set width=0.5")
    kinds = typing.get_type_hints(Run)
    choose("setting", name, {key: None for key in kinds if key != "code"})
    union = isinstance(kinds[name], types.UnionType)
    accepted: Iterable[Any] = typing.get_args(kinds[name]) if union else (kinds[name],)
    if value.lower() == "none" and type(None) in accepted:
        return name, None
    for kind in (int, float, str):
        if kind in accepted:
            try:
                return name, kind(value)
            except ValueError as error:
                raise ValueError(f"--set {text}: {name} must be a number, not {value!r}") from error
    raise ValueError(f"--set cannot change {name}")


def _folder_name(experiment: Experiment, command: "cli.Sweep") -> str:
    name = file_label(command.name)
    return f"{name}-{command.scale or 'demo'}" if experiment.has_scales else name


def _about(experiment: Experiment, command: "cli.Sweep", runs: Sequence[Run], words: str) -> dict[str, Any]:
    """What ``sweep.json`` holds."""
    code = code_of("experiment", command.name, experiment.function)
    about: dict[str, Any] = {"experiment": file_label(command.name)}
    if experiment.has_scales:
        about["scale"] = command.scale or "demo"
    if code is not None:
        about["code"] = asdict(code)
    about |= {"command": words, "environment": environment(command.device)}
    return about | {"runs": [run.id for run in runs], "plan": [run.to_dict() for run in runs]}


def _engine(command: "cli.Sweep", runs: int) -> tuple[Engine, int]:
    """A function that carries out runs, and how many it carries out at once."""
    if command.workers < 1:
        raise ValueError(f"--workers must be at least 1, not {command.workers}")
    if command.engine == "local":
        if command.address is not None or command.gpus is not None:
            raise ValueError("--address and --gpus are for --engine ray; the local engine uses this machine")
        refuse_device(command.device)
        return lambda waiting, directory, place, listen: local.run_all(
            waiting, directory, workers=command.workers, place=place, listen=listen
        ), command.workers
    need("ray", "ray")
    from rewire.lab.engines import ray

    if command.device.startswith("cuda:"):
        raise ValueError(f"Ray assigns the GPUs itself: use --device cuda, not {command.device}")
    if command.address is None:
        refuse_device(command.device)
    gpus = command.gpus if command.gpus is not None else float(command.device == "cuda")
    resources = ray.Resources(command.address, command.workers, command.cpus, gpus)
    return lambda waiting, directory, place, listen: ray.run_all(
        waiting, directory, resources=resources, place=place, listen=listen
    ), ray.slots(resources, runs)


def _refuse_failed(failed: dict[str, str], runs: Sequence[Run], directory: Path) -> None:
    first = next(run for run in runs if run.id in failed)
    folder = folder_of(directory, first)
    trace = folder / "error.json"
    reason = read_json(trace)["traceback"] if trace.exists() else failed[first.id]
    raise ValueError(f"{len(failed)} of {len(runs)} runs failed; the first one, {folder}:\n{reason}")
