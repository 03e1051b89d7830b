"""What the settings of a ``Run`` mean: its method, and its learning rate at every step."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from rewire.core.method import Method
from rewire.core.named import NamedMethod
from rewire.lab.run import Run, begins_dense


def method_of(run: Run, steps: int) -> Method:
    """The method of a run, with ``steps`` optimizer steps an epoch.

    Weights are rewired once an epoch until a share of the training has passed, unless the method has defaults of its
    own for ``every`` and ``until``.
    """
    entry: NamedMethod = run.entry("method")
    every = run.every or (steps if entry.requires("every") else entry.options.get("every", steps))
    options: dict[str, Any] = {"density": 1 - run.sparsity, "every": every, "growth": run.growth}
    if run.fraction is not None:
        options["fraction"] = run.fraction
    if entry.requires("until"):
        options["until"] = max(int(run.until * run.epochs * steps), every)
    if not begins_dense(entry):
        options["start"] = run.start
    method = entry(**{name: value for name, value in options.items() if name in entry.options})
    if run.scope == type(run).scope:
        return method
    drop: Any = method.drop  # it has a scope: the run was checked
    return replace(method, drop=replace(drop, scope=run.scope))


def optimizer_of(run: Run, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of a run."""
    if run.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=run.lr, weight_decay=run.weight_decay)
    return torch.optim.SGD(parameters, lr=run.lr, momentum=run.momentum, weight_decay=run.weight_decay)


def learning_rate(run: Run, step: int, steps: int) -> float:
    """Linear warm-up over the first epochs; then the paper's steps (a fifth at 30, 60 and 80 %), or half a cosine."""
    if step < run.warmup * steps:
        return run.lr * (step + 1) / (run.warmup * steps)
    done = step / (run.epochs * steps)
    if run.decay == "cosine":
        warm = run.warmup / run.epochs
        return run.lr * (1 + math.cos(math.pi * (done - warm) / (1 - warm))) / 2
    return run.lr * 0.2 ** sum(done >= mark for mark in (0.3, 0.6, 0.8))
