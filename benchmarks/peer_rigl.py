"""RigL by rigl-torch 0.5.2 against this library's: same network, data, recipe and seeds; resumable.

``python -m benchmarks.peer_rigl --seeds 3`` appends a line a run to ``docs/results/peer.jsonl``: accuracy and seconds
per epoch. rigl-torch keeps the first layer dense and gives the others one density, and so does our start here. It
imports torchvision for two classes that this network does not have; without torchvision, empty ones stand in.

``pip install --no-deps rigl-torch==0.5.2``; with CIFAR-100 it takes about an hour on one core.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn import functional as F

from rewire.lab.data.augment import batches
from rewire.lab.environment import environment
from rewire.lab.experiments.variants import HERE
from rewire.lab.run import Run
from rewire.lab.training.recipe import learning_rate
from rewire.lab.training.train import train
from rewire.lab.training.trainer import Place, Trainer

RESULTS = Path("docs/results/peer.jsonl")
OURS = Run(
    data="cifar100",
    model="vgg16",
    width=0.125,
    epochs=12,
    sparsity=0.8,
    method=f"{HERE}:rigl_first_dense",
    every=98,
    evaluate_every=12,
)
FRACTION = 0.1  # of the weights that move at first, in both


def ours(run: Run, place: Place) -> dict[str, Any]:
    """A run of this library."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(run, Path(folder) / "run", place)
        lines = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    seconds = median(line["cpu_seconds"] for line in lines[:-1])  # the last epoch is evaluated
    return {"accuracy": result["accuracy"], "cpu_seconds_per_epoch": seconds, "nnz": result["nnz"]}


def theirs(run: Run, place: Place) -> dict[str, Any]:
    """The same training with rigl-torch's scheduler."""
    if "torchvision" not in sys.modules and importlib.util.find_spec("torchvision") is None:
        _stand_in_for_torchvision()
    from rigl_torch.RigL import RigLScheduler

    dense = Run(
        **{name: getattr(run, name) for name in ("data", "model", "width", "epochs", "limit", "seed")},
        method="dense",
        sparsity=0.0,
    )
    trainer = Trainer(dense, place)
    torch.manual_seed(run.seed)  # rigl-torch draws its masks from the global generator
    scheduler = RigLScheduler(
        trainer.model,
        trainer.optimizer,
        dense_allocation=1 - run.sparsity,
        T_end=int(run.until * run.epochs * trainer.steps),
        delta=run.every,
        alpha=FRACTION,
        ignore_linear_layers=False,
    )
    seconds = []
    for epoch in range(run.epochs):
        began = time.process_time()
        _train_epoch(trainer, scheduler, epoch)
        seconds.append(time.process_time() - began)
    nnz = sum(
        w.numel() if mask is None else int(mask.sum())
        for w, mask in zip(scheduler.W, scheduler.backward_masks, strict=True)
    )
    return {"accuracy": trainer.accuracy()[0], "cpu_seconds_per_epoch": median(seconds), "nnz": nnz}


def _train_epoch(trainer: Trainer, scheduler: Callable[[], bool], epoch: int) -> None:
    """Our loop, with the step of the optimizer left to rigl-torch where it rewires."""
    data, run = trainer.data, trainer.run
    trainer.model.train()
    pieces = batches(
        data.train_images,
        data.train_labels,
        size=run.batch_size,
        seed=run.seed,
        epoch=epoch,
        mean=data.mean,
        std=data.std,
        augment=data.augment,
    )
    for index, (x, y) in enumerate(pieces):
        for group in trainer.optimizer.param_groups:
            group["lr"] = learning_rate(run, epoch * trainer.steps + index, trainer.steps)
        trainer.optimizer.zero_grad()
        F.cross_entropy(trainer.model(x), y).backward()
        if scheduler():
            trainer.optimizer.step()


def _stand_in_for_torchvision() -> None:
    names = ("torchvision", "torchvision.models", "torchvision.models.resnet")
    modules = {name: types.ModuleType(name) for name in names}
    modules["torchvision"].models = modules["torchvision.models"]  # type: ignore[attr-defined]
    modules["torchvision.models"].resnet = modules["torchvision.models.resnet"]  # type: ignore[attr-defined]
    for name in ("BasicBlock", "Bottleneck"):
        setattr(modules["torchvision.models.resnet"], name, type(name, (), {}))
    sys.modules |= modules


ARMS: dict[str, tuple[Callable[[Run, Place], dict[str, Any]], str]] = {
    "rigl-torch 0.5.2": (theirs, "masked"),
    "rewire, masked": (ours, "masked"),
    "rewire, packed": (ours, "packed"),
}


def measure(path: Path, seeds: int, base: Run, place: Place) -> None:
    """Carry out what is missing, seed by seed."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(line["arm"], line["run"]["seed"]) for line in lines}
    path.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(seeds):
        for arm, (act, store) in ARMS.items():
            if (arm, seed) in done:
                continue
            run = replace(base, seed=seed, store=store)
            line = {"arm": arm, "run": run.to_dict(), **act(run, place), "environment": environment("cpu")}
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--limit", type=int, help="use at most this many images: to try it out")
    parser.add_argument("--epochs", type=int, default=OURS.epochs)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measure(options.out, options.seeds, replace(OURS, limit=options.limit, epochs=options.epochs), Place())


if __name__ == "__main__":
    main()
