"""Sparse wide networks against dense narrow ones with as many weights."""

from dataclasses import replace

from rewire.lab.experiments import workstation as ws
from rewire.lab.experiments.grid import NETWORKS, SEEDS, dense, methods, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.run import Run

# Widths of a dense VGG16 with about as many weights as the one of width 0.25 has at these sparsities: the sparse one
# has 5.4 % fewer at the higher, and 0.4 % more at the lower.
NARROW = {ws.HIGH: 0.0469, ws.MIDDLE: 0.083}


@register("equal-weights", tables="table1")
def equal_weights(scale: str) -> list[Run]:
    """GGR on a wide network, and a dense narrow one that has about as many weights."""
    if scale == "workstation":
        wide = [run for s in NARROW for run in ws.cells(ws.VGG, s, ["erk"], methods("ggr"), seeds=ws.CLAIM_SEEDS)]
        return wide + dense([replace(ws.VGG, width=width) for width in NARROW.values()], ws.CLAIM_SEEDS)
    network = NETWORKS[scale][0]
    wide = sparse([network], methods("ggr"), SEEDS[scale], sparsities=(0.9,), starts=("erk",))
    return wide + dense([replace(network, width=network.width / 3)], SEEDS[scale])
