"""Do the largest gradients show which layer is too sparse? One layer starts with a tenth of its weights."""

from collections.abc import Iterable
from dataclasses import replace

from rewire.lab.experiments import workstation as ws
from rewire.lab.experiments.grid import NETWORKS, SEEDS
from rewire.lab.experiments.registry import register
from rewire.lab.experiments.variants import HERE
from rewire.lab.run import Run

STARVED = ("rigl_starved", "dsr_starved", "ggr_starved")


@register("recovery", tables="table1")
def recovery(scale: str, seeds: Iterable[int] | None = None) -> list[Run]:
    """GGR, DSR and RigL from a start that starves one layer, and GGR from the uniform start to compare with."""
    network, sparsity = (ws.VGG, ws.HIGH) if scale == "workstation" else (NETWORKS[scale][0], 0.97)
    seeds = list(SEEDS[scale] if seeds is None else seeds)
    names = STARVED[-1:] if scale == "workstation" else STARVED
    starved = [
        replace(network, sparsity=sparsity, method=f"{HERE}:{name}", start=Run.start, seed=seed)
        for seed in seeds
        for name in names
    ]
    control = [replace(network, sparsity=sparsity, start="uniform", method="ggr", seed=seed) for seed in seeds]
    return starved + control
