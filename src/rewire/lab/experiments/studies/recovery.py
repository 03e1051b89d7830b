"""Do the largest gradients show which layer is too sparse? One layer starts with a tenth of its weights."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rewire.lab.experiments import workstation as ws
from rewire.lab.experiments.grid import NETWORKS, SEEDS, methods, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.experiments.variants import HERE, STARVED_METHODS
from rewire.lab.run import Run

STARVED = tuple(STARVED_METHODS)


@register("recovery", tables="table1")
def recovery(scale: str, seeds: Iterable[int] | None = None) -> list[Run]:
    """GGR, DSR and RigL from a start that starves one layer, and GGR from the uniform start to compare with."""
    if scale == "workstation":
        return starved(ws.VGG, ws.HIGH, ws.CLAIM_SEEDS, [f"{HERE}:ggr_starved"])
    return starved(NETWORKS[scale][0], 0.97, SEEDS[scale] if seeds is None else seeds)


def starved(network: Run, sparsity: float, seeds: Iterable[int], names: Sequence[str] = STARVED) -> list[Run]:
    """The methods from the start that starves a layer, and GGR from the uniform one."""
    chosen = list(seeds)
    variants = [replace(network, sparsity=sparsity, method=name) for name in names]
    control = sparse([network], methods("ggr"), chosen, sparsities=(sparsity,), starts=("uniform",))
    return [replace(run, seed=seed) for seed in chosen for run in variants] + control
