"""Beyond the paper: the cells that it could not fill, from starts that connect every neuron."""

from rewire.lab.experiments import workstation as ws
from rewire.lab.experiments.grid import COMPARED, NETWORKS, SEEDS, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.run import Run

START = "connected-uniform"
STARTS = (START, "connected-erk")


@register("connected", tables="table1")
def connected(scale: str) -> list[Run]:
    """All methods from connected starts, where the paper's networks fail from scattered ones."""
    if scale == "workstation":
        return vgg() + mobilenet()
    networks = NETWORKS[scale][:1]
    return sparse(networks, COMPARED, SEEDS[scale], sparsities=(0.99,), starts=("uniform", START))


def vgg() -> list[Run]:
    """VGG16 from connected starts."""
    return ws.cells(ws.VGG, ws.HIGH, STARTS)


def mobilenet() -> list[Run]:
    """MobileNetV2 from connected starts, where the paper's scattered uniform one fails."""
    return ws.cells(ws.MOBILENET, ws.HIGH, STARTS) + ws.cells(ws.MOBILENET, ws.MIDDLE, STARTS)
