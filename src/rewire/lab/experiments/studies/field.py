"""Every method of the library on the digits: one start, two sparsities, five seeds."""

from rewire.lab.experiments.grid import NETWORKS, dense, methods, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.run import Run
from rewire.methods import METHODS

SEEDS = range(5)


@register("field", tables="table1")
def field() -> list[Run]:
    """All methods at 97 and 99 %, from an ERK start, on both networks of the digits."""
    networks = NETWORKS["demo"]
    runs = sparse(networks, methods(*METHODS), SEEDS, sparsities=(0.97, 0.99), starts=("erk",))
    return dense(networks, SEEDS) + runs
