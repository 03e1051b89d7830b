"""Every method of the library on the digits: one start, two sparsities, five seeds."""

from rewire.lab.experiments.grid import NETWORKS, dense, methods, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.run import Run
from rewire.methods import METHODS

SEEDS = range(5)


@register("field", tables="table1")
def field() -> list[Run]:
    """All methods at 97 and 99 %, from an ERK start, on both networks of the digits."""
    networks = _, linear = NETWORKS["demo"]
    runs = dense(networks, SEEDS)
    for network in networks:
        names = [name for name in METHODS if network is linear or not _is_for_some_layers(name)]
        runs += sparse([network], methods(*names), SEEDS, sparsities=(0.97, 0.99), starts=("erk",))
    return runs


def _is_for_some_layers(name: str) -> bool:
    """Whether a method refuses some kinds of layers, such as convolutions."""
    method = METHODS[name].example()
    return any(hasattr(part, "refuse") for part in (method.drop, method.allocate, method.grow))
