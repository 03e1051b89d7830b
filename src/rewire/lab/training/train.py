"""One training, from a ``Run`` to its folder of results. An interrupted run resumes and gives bit-identical results."""

import time
import traceback
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rewire.film.recorder import record
from rewire.lab.environment import environment
from rewire.lab.results import claim, read_json, refuse_busy, write_json, write_metrics
from rewire.lab.run import Run
from rewire.lab.training import checkpoints
from rewire.lab.training.outcome import outcome
from rewire.lab.training.tensorboard import TensorBoardLog
from rewire.lab.training.trainer import Place, Report, Trainer
from rewire.model.select import find_layers


def train(
    run: Run,
    folder: Path,
    place: Place | None = None,
    report: Report = lambda event: None,
    *,
    keep_refused: bool = True,
) -> dict[str, Any]:
    """Carry out a run, or the rest of it, and return its result. A finished run is not trained again.

    ``keep_refused=False``: a run that cannot begin (its data are missing, its density is too low) leaves no folder.
    """
    place = place or Place()
    ranks = place.ranks
    if (result := ranks.on_first(lambda: _finished_result(run, folder))) is not None:
        return result
    try:
        trainer = Trainer(run, place)  # before anything is written
    except Exception:
        if keep_refused and ranks.first:
            with claim(folder):
                _write_about(run, folder, place)
                write_json(folder / "error.json", {"traceback": traceback.format_exc()})
        raise
    with ExitStack() as stack:
        ranks.on_first(lambda: stack.enter_context(claim(folder)))
        if (result := ranks.on_first(lambda: _own_result(run, folder))) is not None:
            return result
        if ranks.first:
            _write_about(run, folder, place)
        try:
            return _train(trainer, folder, report)
        except Exception:
            if ranks.first:
                write_json(folder / "error.json", {"traceback": traceback.format_exc()})
            raise


def _finished_result(run: Run, folder: Path) -> dict[str, Any] | None:
    """The result of a finished run; refuses a folder that another process works on, before data are loaded for it."""
    refuse_busy(folder)
    return _own_result(run, folder)


def _own_result(run: Run, folder: Path) -> dict[str, Any] | None:
    """The result if the run is finished; refuses a folder with files of another run, or of a run that is not known."""
    about, checkpoint, finished = (folder / name for name in ("run.json", "checkpoint.safetensors", "result.json"))
    if finished.exists():
        stored = read_json(about).get("run") if about.exists() else None
        if stored is None:
            raise ValueError(f"{finished} is of an unknown run (no run.json names it): give another --out or remove it")
        _refuse_other(run, stored, about)
        return read_json(finished)
    if checkpoint.exists():
        _refuse_other(run, checkpoints.load_run(checkpoint), checkpoint)
    return None


def _refuse_other(run: Run, stored: Any, file: Path) -> None:
    """Raise if a file names another run. Ids are compared, because own code may have moved."""
    other = Run.from_dict(stored) if isinstance(stored, dict) else run
    if other.id != run.id:
        raise ValueError(f"{file} is of another run ({other.label}, id {other.id}): give another --out or remove it")


def _write_about(run: Run, folder: Path, place: Place) -> None:
    about = {"run": run.to_dict(), "id": run.id, "environment": environment(place.device, place.ranks.size)}
    write_json(folder / "run.json", about)
    (folder / "error.json").unlink(missing_ok=True)


def _train(trainer: Trainer, folder: Path, report: Report) -> dict[str, Any]:
    run, place, ranks = trainer.run, trainer.place, trainer.ranks
    checkpoint = folder / "checkpoint.safetensors"
    if (state := ranks.on_first(lambda: checkpoints.load(checkpoint) if checkpoint.exists() else None)) is not None:
        trainer.load_state(state)
    log = TensorBoardLog(folder / "tensorboard", len(trainer.metrics)) if place.tensorboard and ranks.first else None
    film = record(trainer.rewirer, folder, run.label) if place.film and trainer.rewirer else None
    for epoch in range(len(trainer.metrics), run.epochs):
        began, cpu_began = time.perf_counter(), time.process_time()
        loss = trainer.train_epoch(epoch, report)
        line = {
            "epoch": epoch + 1,
            "loss": loss,
            **_evaluation(trainer, epoch + 1),
            "lr": trainer.optimizer.param_groups[0]["lr"],
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - cpu_began,  # on a busy machine, what an idle one would take
            "nnz": list(trainer.nnz().values()),
        }
        if run.record_losses:
            line["losses"] = trainer.losses
        trainer.metrics.append(line)
        ranks.on_first(partial(_save, folder, trainer.state()))
        if film is not None:
            film.log(**{name: line[name] for name in ("loss", "accuracy") if name in line})
        if log is not None:
            log.add(line, list(trainer.nnz()), [layer.spec.numel for layer in find_layers(trainer.model)[0]])
        report({"kind": "epoch", **line})
    if film is not None:
        film.close()
    result, masks = outcome(trainer), trainer.masks()
    ranks.on_first(lambda: checkpoints.save_tensors(folder / "topology.safetensors", masks))
    ranks.on_first(lambda: write_json(folder / "result.json", result))
    return result


def _evaluation(trainer: Trainer, epoch: int) -> dict[str, float]:
    """Accuracy and loss on the test set, after the epochs that the run evaluates."""
    if epoch % trainer.run.evaluate_every and epoch != trainer.run.epochs:
        return {}
    accuracy, test_loss = trainer.accuracy()
    return {"accuracy": accuracy, "test_loss": test_loss}


def _save(folder: Path, state: dict[str, Any]) -> None:
    checkpoints.save(folder / "checkpoint.safetensors", state)
    write_metrics(folder, state["metrics"])
