"""What a finished training leaves in ``result.json``."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from rewire.analysis.dead_units import count_units
from rewire.analysis.flops import macs, positions, ranked_steps, training_macs
from rewire.core.dense_ops import where_true
from rewire.core.method import Method, Rewiring
from rewire.lab.environment import environment
from rewire.lab.training.trainer import Trainer
from rewire.model.select import find_layers


def training_flops(
    initial: Mapping[str, int],
    sizes: Mapping[str, int],
    applied: Mapping[str, int],
    history: Sequence[Rewiring],
    steps: int,
    method: Method | None,
) -> dict[str, float]:
    """Multiply-adds of the training, per image of a batch, and their ratio to a dense training of as many steps."""
    ranked = ranked_steps(method, steps) if method is not None else ()
    cost, dense = training_macs(initial, sizes, applied, history, steps, ranked), 3 * steps * macs(sizes, applied)
    return {"training": cost, "training_dense": dense, "training_ratio": cost / dense}


def outcome(trainer: Trainer) -> dict[str, Any]:
    """What ``result.json`` holds."""
    nnz, explored, last = trainer.nnz(), trainer.explored(), trainer.metrics[-1]
    specs = {layer.spec.name: layer.spec for layer in find_layers(trainer.model)[0]}
    used = {name: count_units(specs[name], where_true(mask.bool())) for name, mask in trainer.masks().items()}
    example = torch.zeros(1, *trainer.data.image, device=trainer.device, dtype=trainer.dtype)
    applied = positions(trainer.model, example)
    sizes = {name: spec.numel for name, spec in specs.items()}
    sparse, dense = macs(nnz, applied), macs(sizes, applied)
    history = trainer.rewirer.history if trainer.rewirer is not None else []
    method = trainer.rewirer.method if trainer.rewirer is not None else None
    return {
        "accuracy": last["accuracy"],
        "loss": last["loss"],
        "classes": trainer.data.classes,
        "nnz": sum(nnz.values()),
        "weights": sum(sizes.values()),
        "density": sum(nnz.values()) / sum(sizes.values()),
        "explored": sum(explored.values()) or None,
        "layers": [
            {"name": name, "shape": list(specs[name].shape), "nnz": nnz[name], "initial_nnz": trainer.initial[name]}
            | {"explored": explored.get(name)}
            | asdict(used[name])
            for name in nnz
        ],
        "flops": {"inference": sparse, "dense": dense, "ratio": sparse / dense}
        | training_flops(trainer.initial, sizes, applied, history, len(trainer.metrics) * trainer.steps, method),
        "rewirings": [asdict(rewiring) for rewiring in history],
        "steps_per_epoch": trainer.steps,
        "seconds": sum(line["seconds"] for line in trainer.metrics),
        "environment": environment(trainer.place.device, trainer.ranks.size),
        "command": shlex.join(["rewire", "train", *trainer.run.arguments()]),
    }
