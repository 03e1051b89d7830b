"""Checkpoints of a run on one or many ranks, which any number of ranks can load. A partial checkpoint is never loaded.

A checkpoint is a folder ``step-000001200``: what ``torch.distributed.checkpoint`` writes (each rank its own shards),
``run.json`` (the rewirer's state and the user's ``extra``), and per rank a list of its files with their checksums. It
is written under another name and renamed when every rank is done. Loading tries the newest checkpoint first; if one of
its files is missing or damaged, it warns and tries the previous checkpoint.
"""

import contextlib
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rewire.rewirer.rewirer import Rewirer
from rewire.stores.optimizer.optimizers import Given

RUN = "run.json"


@dataclass(frozen=True)
class Loaded:
    """Which checkpoint was loaded, and what was saved with it."""

    step: int
    path: Path
    extra: dict[str, Any] = field(default_factory=dict)


def save(
    folder: str | Path,
    step: int,
    *,
    model: nn.Module,
    optimizer: Given,
    rewirer: Rewirer,
    extra: dict[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """Write a checkpoint, then remove all but the newest ``keep``. All ranks call it; if one fails, all raise.

    ``extra``: plain values that come back from ``load_latest``, such as a scheduler's ``state_dict``.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    folder = Path(folder)
    final, partial = folder / f"step-{step:09d}", folder / f"partial-{step:09d}"
    tensors, plain = _state(model, optimizer, rewirer)
    run = json.dumps({"step": step, "rewirer": plain, "extra": extra or {}})
    _on_every_rank(lambda: _make_empty(partial) if _rank() == 0 else None, "make room for a checkpoint")
    try:
        _on_every_rank(lambda: _write(partial, tensors, run), f"write the checkpoint of step {step}")
        _on_every_rank(lambda: _rename(partial, final) if _rank() == 0 else None, "complete the checkpoint")
    except BaseException:
        if _rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    if _rank() == 0:
        for outdated in complete(folder)[keep:]:
            shutil.rmtree(outdated, ignore_errors=True)
    return final


def load_latest(folder: str | Path, *, model: nn.Module, optimizer: Given, rewirer: Rewirer) -> Loaded | None:
    """Load the newest checkpoint that is whole, or return ``None`` if there is none yet. All ranks call it."""
    checkpoints = _broadcast(complete(Path(folder)))
    for path in checkpoints:
        damage = _find_damage(path)
        if not damage:
            return _load(path, model, optimizer, rewirer)
        warnings.warn(f"the checkpoint {path} is damaged ({damage}): the one before it is used", stacklevel=2)
    if checkpoints:
        raise RuntimeError(f"no checkpoint in {folder} is whole: remove the folder to begin anew")
    return None


def complete(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first, without those that were never completed."""
    return sorted(folder.glob("step-*"), reverse=True)


def _state(model: nn.Module, optimizer: Given, rewirer: Rewirer) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state of a run: tensors, which may be sharded, and plain values that JSON can hold."""
    if not rewirer.store.keeps_shapes:
        raise ValueError(
            "the shapes of a packed model change with its topology, which torch.distributed.checkpoint cannot load: "
            "use torch.save with the three state_dicts"
        )
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    optimizer_state = get_optimizer_state_dict(model, optimizer)  # first: it may have to create the state
    plain = rewirer.state_dict()
    tensors = {"model": get_model_state_dict(model), "optimizer": optimizer_state, "averages": plain.pop("averages")}
    plain["history"]["counts"] = plain["history"]["counts"].tolist()
    return tensors, plain


def _write(path: Path, tensors: dict[str, Any], run: str) -> None:
    """Write this rank's shards and the list of its files; rank 0 also writes ``run.json``."""
    from torch.distributed.checkpoint.state_dict_saver import save as write

    with _single_process_allowed():
        write(tensors, checkpoint_id=path, no_dist=not _is_distributed())
    own_files = [file for file in path.glob(f"__{_rank()}_*") if file.is_file()]
    if _rank() == 0:
        _write_text(path / RUN, run)
        own_files += [path / RUN, path / ".metadata"]
    files = {file.name: [file.stat().st_size, _digest(file)] for file in own_files}
    _write_text(path / f"files-{_rank()}.json", json.dumps({"ranks": _world_size(), "files": files}))


def _load(path: Path, model: nn.Module, optimizer: Given, rewirer: Rewirer) -> Loaded:
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load as read

    tensors, _ = _state(model, optimizer, rewirer)
    with _single_process_allowed():
        read(tensors, checkpoint_id=path, no_dist=not _is_distributed())
    run = json.loads((path / RUN).read_text())
    set_model_state_dict(model, tensors["model"])
    set_optimizer_state_dict(model, optimizer, tensors["optimizer"])
    state = run["rewirer"] | {"averages": tensors["averages"]}
    state["history"]["counts"] = torch.tensor(state["history"]["counts"], dtype=torch.int64)
    rewirer.load_state_dict(state)
    return Loaded(run["step"], path, run["extra"])


def _find_damage(path: Path) -> str:
    """What is wrong with a checkpoint, or ``""``. Each rank reads a part of the files, and all return the same."""
    damage = ""
    try:
        writers = json.loads((path / "files-0.json").read_text())["ranks"]
        for writer in range(_rank(), writers, _world_size()):
            listed = json.loads((path / f"files-{writer}.json").read_text())["files"]
            for name, (size, digest) in listed.items():
                file = path / name
                if file.stat().st_size != size or _digest(file) != digest:
                    damage = f"{name} is not what was written"
    except (OSError, ValueError, KeyError, TypeError) as error:
        damage = f"{type(error).__name__}: {error}"
    return next(filter(None, _gather(damage)), "")


@contextlib.contextmanager
def _single_process_allowed() -> Iterator[None]:
    """Silence the warning that ``torch.distributed.checkpoint`` gives outside of a process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def _on_every_rank(action: Callable[[], None], description: str) -> None:
    """Run ``action``, on every rank; if it fails on one rank, raise on all."""
    failure: BaseException | None = None
    try:
        action()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # torch's CheckpointException is not an Exception
        failure = error
    messages = _gather("" if failure is None else f"{type(failure).__name__}: {failure}")
    first = next((f"rank {rank}: {text.strip().splitlines()[-1]}" for rank, text in enumerate(messages) if text), "")
    if first:
        raise RuntimeError(f"could not {description} ({first}); what was saved before is intact") from failure


def _make_empty(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)


def _rename(partial: Path, final: Path) -> None:
    if final.exists():  # the same step again, after loading an earlier checkpoint
        shutil.rmtree(final)
    partial.rename(final)
    folder = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_text(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _rank() -> int:
    return dist.get_rank() if _is_distributed() else 0


def _world_size() -> int:
    return dist.get_world_size() if _is_distributed() else 1


def _gather(text: str) -> list[str]:
    """The texts of all ranks, in the order of the ranks."""
    texts: list[Any] = [text] * _world_size()
    if _is_distributed():
        dist.all_gather_object(texts, text)
    return texts


def _broadcast(paths: list[Path]) -> list[Path]:
    """The paths that rank 0 has: folders may look different to ranks on other machines."""
    message: list[Any] = [paths]
    if _is_distributed():
        dist.broadcast_object_list(message, src=0)
    received: list[Path] = message[0]
    return received
