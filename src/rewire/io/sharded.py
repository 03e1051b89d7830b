"""Checkpoints of a run on one or many ranks, which any number of ranks can load. Nothing half-written is ever loaded.

A checkpoint is a folder ``step-000001200``: what ``torch.distributed.checkpoint`` writes (each rank its own shards),
``run.json`` (the rewirer and what you add), and per rank a list of its files with their checksums. It is written under
another name and renamed when every rank is done. Loading looks at the newest first and, with a warning, falls back on
the one before if a file of it is missing or damaged.
"""

import contextlib
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
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
    """Write a checkpoint, then remove all but the newest ``keep``. All ranks call it; all raise if one of them fails.

    ``extra``: plain values that come back from ``load_latest``, such as a scheduler's ``state_dict``.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    folder = Path(folder)
    final, partial = folder / f"step-{step:09d}", folder / f"partial-{step:09d}"
    tensors, plain = _state(model, optimizer, rewirer)
    text = json.dumps({"step": step, "rewirer": plain, "extra": extra or {}})
    _together(lambda: _make_empty(partial) if _rank() == 0 else None, "make room for a checkpoint")
    try:
        _together(lambda: _write(partial, tensors, text), f"write the checkpoint of step {step}")
        _together(lambda: _rename(partial, final) if _rank() == 0 else None, "complete the checkpoint")
    except BaseException:
        if _rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    if _rank() == 0:
        for old in complete(folder)[keep:]:
            shutil.rmtree(old, ignore_errors=True)
    return final


def load_latest(folder: str | Path, *, model: nn.Module, optimizer: Given, rewirer: Rewirer) -> Loaded | None:
    """Load the newest checkpoint that is whole, or return ``None`` if there is none yet. All ranks call it."""
    found = _from_first(complete(Path(folder)))
    for path in found:
        damaged = _damaged(path)
        if not damaged:
            return _load(path, model, optimizer, rewirer)
        warnings.warn(f"the checkpoint {path} is damaged ({damaged}): the one before it is used", stacklevel=2)
    if found:
        raise RuntimeError(f"no checkpoint in {folder} is whole: remove the folder to begin anew")
    return None


def complete(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first; those that were never completed are not among them."""
    return sorted(folder.glob("step-*"), reverse=True)


def _state(model: nn.Module, optimizer: Given, rewirer: Rewirer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors, some of them spread over the ranks, and plain values."""
    if not rewirer.store.keeps_shapes:
        raise ValueError(
            "the shapes of a packed model change with its topology, which torch.distributed.checkpoint cannot load: "
            "use torch.save with the three state_dicts"
        )
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    optimizer_state = get_optimizer_state_dict(model, optimizer)  # first: it may have to make the state up
    plain = rewirer.state_dict()
    tensors = {"model": get_model_state_dict(model), "optimizer": optimizer_state, "averages": plain.pop("averages")}
    plain["history"]["counts"] = plain["history"]["counts"].tolist()
    return tensors, plain


def _write(path: Path, tensors: dict[str, Any], text: str) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save as write

    with _alone_is_fine():
        write(tensors, checkpoint_id=path, no_dist=not _several())
    mine = [one for one in path.glob(f"__{_rank()}_*") if one.is_file()]
    if _rank() == 0:
        _write_text(path / RUN, text)
        mine += [path / RUN, path / ".metadata"]
    files = {one.name: [one.stat().st_size, _digest(one)] for one in mine}
    _write_text(path / f"files-{_rank()}.json", json.dumps({"ranks": _ranks(), "files": files}))


def _load(path: Path, model: nn.Module, optimizer: Given, rewirer: Rewirer) -> Loaded:
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load as read

    tensors, _ = _state(model, optimizer, rewirer)
    with _alone_is_fine():
        read(tensors, checkpoint_id=path, no_dist=not _several())
    run = json.loads((path / RUN).read_text())
    set_model_state_dict(model, tensors["model"])
    set_optimizer_state_dict(model, optimizer, tensors["optimizer"])
    state = run["rewirer"] | {"averages": tensors["averages"]}
    state["history"]["counts"] = torch.tensor(state["history"]["counts"], dtype=torch.int64)
    rewirer.load_state_dict(state)
    return Loaded(run["step"], path, run["extra"])


def _damaged(path: Path) -> str:
    """What is wrong with a checkpoint, or nothing. The ranks share the work, and all hear the same."""
    wrong = ""
    try:
        ranks = json.loads((path / "files-0.json").read_text())["ranks"]
        for writer in range(_rank(), ranks, _ranks()):
            listed = json.loads((path / f"files-{writer}.json").read_text())["files"]
            for name, (size, digest) in listed.items():
                one = path / name
                if one.stat().st_size != size or _digest(one) != digest:
                    wrong = f"{name} is not what was written"
    except (OSError, ValueError, KeyError, TypeError) as error:
        wrong = f"{type(error).__name__}: {error}"
    return next((one for one in _from_all(wrong) if one), "")


@contextlib.contextmanager
def _alone_is_fine() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def _together(act: Any, what: str) -> None:
    """Do something on every rank; if it fails on one, raise on all."""
    failure: BaseException | None = None
    try:
        act()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # torch's CheckpointException is not an Exception
        failure = error
    said = _from_all("" if failure is None else f"{type(failure).__name__}: {failure}")
    other = next((f"rank {rank}: {one.strip().splitlines()[-1]}" for rank, one in enumerate(said) if one), "")
    if other:
        raise RuntimeError(f"could not {what} ({other}); what was saved before is intact") from failure


def _make_empty(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)


def _rename(partial: Path, final: Path) -> None:
    if final.exists():  # the same step again, after falling back on an earlier one
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


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _rank() -> int:
    return dist.get_rank() if _several() else 0


def _ranks() -> int:
    return dist.get_world_size() if _several() else 1


def _from_all(said: str) -> list[str]:
    everyone: list[Any] = [said] * _ranks()
    if _several():
        dist.all_gather_object(everyone, said)
    return everyone


def _from_first(paths: list[Path]) -> list[Path]:
    said: list[Any] = [paths]
    if _several():
        dist.broadcast_object_list(said, src=0)
    first: list[Path] = said[0]
    return first
