"""The demonstration: GGR, SET, RigL, DSR and dense at 97 and 99 %, ERK and uniform, on the embedded digits."""

from rewire.lab.experiments.grid import NETWORKS, SEEDS, dense, methods, sparse
from rewire.lab.run import Run


def runs(scale: str) -> list[Run]:
    """The first network of the scale only."""
    networks = NETWORKS[scale][:1]
    variants = methods("set", "rigl", "dsr", "ggr")
    return dense(networks, SEEDS[scale]) + sparse(networks, variants, SEEDS[scale], sparsities=(0.97, 0.99))
