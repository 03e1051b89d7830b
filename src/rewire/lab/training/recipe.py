"""What the settings of a ``Run`` mean: its method, and its learning rate at every step."""

from dataclasses import replace
from typing import Any

from rewire.core.method import Method
from rewire.lab.run import Run
from rewire.methods import METHODS
from rewire.parts.drop import Lowest


def method_of(run: Run, steps: int) -> Method:
    """The method of a run, with ``steps`` optimizer steps an epoch."""
    options: dict[str, Any] = {} if run.fraction is None else {"fraction": run.fraction}
    if run.method == "ggr":
        options["growth"] = run.growth
    every = run.every or (1 if run.method == "deepr" else steps)
    until = None if run.method == "deepr" else max(int(run.until * run.epochs * steps), every)
    method = METHODS[run.method](
        density=1 - run.sparsity,
        every=every,
        until=until,
        start=run.start if run.method != "gmp" else "dense",
        **options,
    )
    return replace(method, drop=Lowest(scope="network")) if run.scope == "network" else method


def learning_rate(run: Run, step: int, steps: int) -> float:
    """The paper's: warm-up from zero over the first epochs, then a fifth at 30, 60 and 80 % of the training."""
    if step < run.warmup * steps:
        return run.lr * (step + 1) / (run.warmup * steps)
    done = step / (run.epochs * steps)
    return run.lr * 0.2 ** sum(done >= mark for mark in (0.3, 0.6, 0.8))
