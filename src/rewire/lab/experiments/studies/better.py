"""What would make GGR better? One change at a time, where a run takes seconds: the digits, with 50 seeds."""

from dataclasses import replace
from typing import Any

from rewire.lab.experiments import workstation as ws
from rewire.lab.experiments.registry import register
from rewire.lab.experiments.studies.connected import START
from rewire.lab.experiments.variants import HERE
from rewire.lab.run import Run

SEEDS = {"demo": range(2), "laptop": range(10), "workstation": range(50), "paper": range(100)}
BASE = Run(
    model="vgg-small",
    epochs=10,
    batch_size=64,
    sparsity=0.98,
    start="uniform",
    method="ggr",
    every=6,
    evaluate_every=10,
)
CHANGES: dict[str, dict[str, Any]] = {
    "gradients averaged over ten batches": {"method": f"{HERE}:ggr_averaged"},
    "gradients scaled by layer": {"method": f"{HERE}:ggr_layer_scaled"},
    "share by gradient 0": {"growth": "random"},
    "share by gradient 0.25": {"method": f"{HERE}:ggr_share_25"},
    "share by gradient 0.75": {"method": f"{HERE}:ggr_share_75"},
    "share by gradient 1": {"growth": "gradient"},
    "fraction 0.05": {"fraction": 0.05},
    "fraction 0.2": {"fraction": 0.2},
    "fraction 0.3": {"fraction": 0.3},
    "rewired twice as often": {"every": 3},
    "rewired half as often": {"every": 12},
    "rewired once an epoch": {"every": 23},
    "until 75 % of the training": {"until": 0.75},
    "connected start": {"start": START},
    "fan-in initialisation": {"init": "fan_in"},
    "ERK start": {"start": "erk"},
    "connected start and fan-in initialisation": {"start": START, "init": "fan_in"},
}
# On CIFAR-100 too: what is clearly better or worse on the digits, and what other studies have.
LARGE = replace(ws.VGG, sparsity=ws.HIGH, start=BASE.start, method=BASE.method)
ON_LARGE: dict[str, dict[str, Any]] = {
    "share by gradient 0": {"growth": "random"},
    "share by gradient 1": {"growth": "gradient"},
    "rewired twice as often": {"every": 49},
    "rewired half as often": {"every": 196},
    "rewired once an epoch": {"every": 391},
    "connected start": {"start": START},
    "ERK start": {"start": "erk"},
}
RIVALS = ("set", "rigl", "set_rigl", "dsr")
RIVALS_ON_LARGE = ("set", "rigl", "dsr")
SCHEDULES = {"four times an epoch": LARGE.every, "once an epoch": 391}  # of the rivals on CIFAR-100; the paper: once


@register("better", tables="table1")
def better(scale: str) -> list[Run]:
    """GGR with one setting changed at a time, and its rivals from scattered and connected starts."""
    changed = [BASE, *(replace(BASE, **change) for change in CHANGES.values())]
    starts = (BASE.start, START)
    rivals = [replace(BASE, method=name, start=start) for start in starts for name in RIVALS]
    return [replace(run, seed=seed) for seed in SEEDS[scale] for run in changed + rivals]


def on_large() -> list[Run]:
    """The changes that are made on CIFAR-100 too, GGR as it is, and its rivals with both schedules."""
    changed = [LARGE, *(replace(LARGE, **change) for change in ON_LARGE.values())]
    rivals = [replace(LARGE, method=name, every=every) for every in SCHEDULES.values() for name in RIVALS_ON_LARGE]
    return [replace(run, seed=seed) for seed in ws.SEEDS for run in changed + rivals]
