"""The demonstration, which `make demo` runs."""

from rewire.lab.experiments.grid import COMPARED, NETWORKS, SEEDS, dense, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.run import Run


@register("demo", tables="table1")
def demo(scale: str) -> list[Run]:
    """GGR, SET, RigL, DSR and dense at 97 and 99 %, ERK and uniform, on the first network of the scale."""
    networks = NETWORKS[scale][:1]
    return dense(networks, SEEDS[scale]) + sparse(networks, COMPARED, SEEDS[scale], sparsities=(0.97, 0.99))
