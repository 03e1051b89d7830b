"""Table 1 of the paper: networks x {dense, SET, RigL, DSR, GGR} x {90, 97, 99 %} x {ERK, uniform}."""

from rewire.lab.experiments.grid import NETWORKS, SEEDS, dense, methods, sparse
from rewire.lab.run import Run


def runs(scale: str) -> list[Run]:
    """All of them; table 2 averages the same runs."""
    variants = methods("set", "rigl", "dsr", "ggr")
    return dense(NETWORKS[scale], SEEDS[scale]) + sparse(NETWORKS[scale], variants, SEEDS[scale])
