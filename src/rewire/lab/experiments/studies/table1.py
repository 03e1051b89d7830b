"""Table 1 of the paper: networks x {dense, SET, RigL, DSR, GGR} x {90, 97, 99 %} x {ERK, uniform}."""

from rewire.lab.experiments.grid import NETWORKS, SEEDS, dense, methods, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.run import Run

VARIANTS = methods("set", "rigl", "dsr", "ggr")


@register("table1", tables="table")
def table1(scale: str) -> list[Run]:
    """Networks x methods x sparsities x starts; table 2 averages the same runs."""
    return dense(NETWORKS[scale], SEEDS[scale]) + sparse(NETWORKS[scale], VARIANTS, SEEDS[scale])
