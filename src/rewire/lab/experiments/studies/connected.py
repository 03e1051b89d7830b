"""Beyond the paper: the cells that it could not fill, from starts that connect every neuron."""

from rewire.lab.experiments import workstation as ws
from rewire.lab.experiments.grid import NETWORKS, SEEDS, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.experiments.studies.table1 import VARIANTS
from rewire.lab.run import Run

START = "connected-uniform"


@register("connected", tables="table1")
def connected(scale: str) -> list[Run]:
    """All methods from connected uniform starts, where the paper's networks fail from scattered ones."""
    if scale == "workstation":
        return vgg() + mobilenet()
    networks = NETWORKS[scale][:1]
    return sparse(networks, VARIANTS, SEEDS[scale], sparsities=(0.99,), starts=("uniform", START))


def vgg() -> list[Run]:
    """VGG16 from a connected uniform start."""
    return ws.cells(ws.VGG, ws.HIGH, [START])


def mobilenet() -> list[Run]:
    """MobileNetV2 from a connected uniform start, and one seed from the start that fails in the paper."""
    return ws.cells(ws.MOBILENET, ws.HIGH, [START]) + ws.cells(ws.MOBILENET, ws.HIGH, ["uniform"], seeds=range(1))
