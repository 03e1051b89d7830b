"""Runs that never took place: records and folders with invented numbers, for what reads results."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from rewire.lab.data.datasets import DATASETS
from rewire.lab.results import Record, folder_of, write_json, write_metrics, write_with
from rewire.lab.run import DENSE, Run

SHAPES = {"conv1": (8, 1, 3, 3), "conv2": (16, 8, 3, 3), "conv3": (24, 16, 3, 3), "fc1": (32, 96), "fc2": (10, 32)}
ENVIRONMENT = {
    "rewire": "0.0.made-up",
    "torch": "0.0",
    "python": "0.0",
    "platform": "made-up",
    "cpu": "Abacus <9000>",
    "threads": 1,
    "device": "cpu",
}


def masks(run: Run) -> dict[str, np.ndarray]:
    """Random masks; the methods that move weights between layers thin out the larger ones."""
    rng = np.random.default_rng(int(run.id, 16))
    sizes = np.array([np.prod(shape) for shape in SHAPES.values()])
    shift = 0.15 if run.method in ("ggr", "dsr") else 0.0
    density = (1 - run.sparsity) * (sizes / sizes.mean()) ** -(0.5 + shift)
    density = np.ones(len(sizes)) if run.is_dense else density.clip(0.01, 1)
    counts = np.maximum(1, (density * sizes).astype(int))
    found = {}
    for (name, shape), size, count in zip(SHAPES.items(), sizes, counts, strict=True):
        flat = np.zeros(size, np.uint8)
        flat[rng.choice(size, count, replace=False)] = 1
        found[name] = flat.reshape(shape)
    return found


def layer(name: str, mask: np.ndarray, initial: int) -> dict:
    flat = mask.reshape(*mask.shape[:2], -1).any(axis=2)
    used = int(flat.any(axis=1).sum()), int(flat.any(axis=0).sum())
    kernel = int(np.prod(mask.shape[2:]))
    return {
        "name": name,
        "shape": list(mask.shape),
        "nnz": int(mask.sum()),
        "initial_nnz": initial,
        "neurons": mask.shape[0],
        "empty_neurons": mask.shape[0] - used[0],
        "inputs": mask.shape[1],
        "empty_inputs": mask.shape[1] - used[1],
        "remaining": used[0] * used[1] * kernel,
    }


def result(run: Run, accuracy: float, **changes: object) -> dict:
    layers = [layer(name, mask, int(mask.sum() * 0.9) + 1) for name, mask in masks(run).items()]
    nnz, weights = sum(one["nnz"] for one in layers), sum(int(np.prod(one["shape"])) for one in layers)
    made = {
        "accuracy": accuracy,
        "loss": 1.0,
        "classes": DATASETS[run.data].classes,
        "nnz": nnz,
        "weights": weights,
        "density": nnz / weights,
        "layers": layers,
        "explored": min(2 * nnz, weights),
        "flops": {"inference": 1.0, "dense": 2.0, "ratio": 0.5, "training": 3e6, "training_ratio": 0.625},
        "rewirings": [],
        "steps_per_epoch": 1,
        "seconds": 1.0,
        "environment": ENVIRONMENT,
        "command": "rewire train --made-up",
    }
    return made | changes


def metrics(run: Run, accuracy: float, epochs: int) -> list[dict]:
    final = [int(mask.sum()) for mask in masks(run).values()]
    return [
        {
            "epoch": epoch,
            "loss": 1 / epoch,
            "accuracy": accuracy * (1 - 0.7**epoch) / (1 - 0.7**run.epochs),
            "lr": 0.1,
            "seconds": 1.0,
            "nnz": [max(1, round(n * (1 - 0.3 * 0.6**epoch))) for n in final],
        }
        for epoch in range(1, epochs + 1)
    ]


def record(run: Run, accuracy: float | None = None, **changes: object) -> Record:
    """In memory only; without an accuracy it is planned."""
    if accuracy is None:
        return Record(run, Path("made-up"), "planned", [], None, None)
    epochs = metrics(run, accuracy, run.epochs)
    return Record(run, Path("made-up"), "done", epochs, result(run, accuracy, **changes), None)


def write(directory: Path, run: Run, accuracy: float = 0.5, *, status: str = "done", **changes: object) -> Path:
    """A folder as a run would leave it: done, half, failed (half way as well) or planned (untouched)."""
    folder = folder_of(directory, run)
    write_json(folder / "run.json", {"run": run.to_dict(), "rewire": "0.0.made-up", "began": 0.0})
    if status == "planned":
        return folder
    write_metrics(folder, metrics(run, accuracy, run.epochs if status == "done" else run.epochs // 2))
    if status == "done":
        write_json(folder / "result.json", result(run, accuracy, **changes))
        write_with(folder / "topology.safetensors", lambda path: save_file(masks(run), path))
    if status == "failed":
        trace = "Traceback (most recent call last):\n  File 'x'\nRuntimeError: <b>out of beads</b>\n"
        write_json(folder / "error.json", {"traceback": trace})
    return folder


def sweep(directory: Path, *, seeds: int = 2, methods: tuple[str, ...] = ("set", "rigl", "dsr", "ggr")) -> list[Run]:
    """A small finished sweep: dense and sparse methods, 97 and 99 %, ERK and uniform; one configuration fails."""
    runs = [Run(method=DENSE, sparsity=0.0, epochs=8, seed=seed) for seed in range(seeds)]
    runs += [
        Run(method=method, sparsity=sparsity, start=start, epochs=8, seed=seed)
        for method in methods
        for sparsity in (0.97, 0.99)
        for start in ("erk", "uniform")
        for seed in range(seeds)
    ]
    for run in runs:
        skill = {"set": -0.04, "rigl": -0.02, "dsr": 0.0, "ggr": 0.03}.get(run.method, 0.08)
        bonus = skill + 0.02 * run.seed - (run.sparsity > 0.98) * 0.2
        broken = run.method == "set" and run.sparsity > 0.98 and run.start == "uniform"
        write(directory, run, 0.1 if broken else 0.8 + bonus - 0.05 * (run.start == "uniform"))
    content = {"experiment": "made-up", "scale": "demo", "command": "rewire sweep made-up --scale demo"}
    write_json(directory / "sweep.json", content | {"environment": ENVIRONMENT, "runs": [run.id for run in runs]})
    return runs
