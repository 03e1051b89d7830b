"""Table 3 of the paper, the ablation: growth at random, by gradient and mixed, in place and by GGR's allocation."""

from rewire.lab.experiments import workstation as ws
from rewire.lab.experiments.grid import NETWORKS, SEEDS, methods, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.run import Run

IN_PLACE = methods("set", "rigl", "set_rigl")
GLOBAL = [{"method": "ggr", "growth": growth} for growth in ("random", "gradient", "mix")]


@register("table3", tables="table3")
def table3(scale: str) -> list[Run]:
    """The ablation: SET, RigL, SET+RigL, and GGR with each growth."""
    if scale == "workstation":
        return ws.cells(ws.VGG, ws.HIGH, variants=IN_PLACE + GLOBAL, seeds=ws.CLAIM_SEEDS)
    return sparse(NETWORKS[scale], IN_PLACE + GLOBAL, SEEDS[scale])
