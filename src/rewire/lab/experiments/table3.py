"""Table 3 of the paper, the ablation: growth at random, by gradient and mixed, in place and by GGR's allocation."""

from rewire.lab.experiments.grid import NETWORKS, SEEDS, methods, sparse
from rewire.lab.run import Run


def runs(scale: str) -> list[Run]:
    """SET, RigL, SET+RigL, GGR SET, GGR RigL, GGR."""
    global_ones = [{"method": "ggr", "growth": growth} for growth in ("random", "gradient", "mix")]
    return sparse(NETWORKS[scale], methods("set", "rigl", "set_rigl") + global_ones, SEEDS[scale])
