"""Table 4 of the paper; its runs are also those of figures 2 and 3."""

from rewire.lab.experiments import workstation as ws
from rewire.lab.experiments.grid import COMPARED, NETWORKS, SEEDS, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.run import Run


@register("table4", tables="table4")
def table4(scale: str) -> list[Run]:
    """Empty neurons and inputs at 97 %, of the last two networks of the scale (MobileNetV2 and VGG16 in the paper)."""
    if scale == "workstation":
        return ws.cells(ws.VGG, ws.MIDDLE, seeds=ws.CLAIM_SEEDS)
    return sparse(NETWORKS[scale][-2:], COMPARED, SEEDS[scale], sparsities=(0.97,))
