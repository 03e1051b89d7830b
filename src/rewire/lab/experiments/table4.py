"""Table 4 of the paper: empty neurons and inputs after training at 97 %; also the runs of figures 2 and 3."""

from rewire.lab.experiments.grid import NETWORKS, SEEDS, methods, sparse
from rewire.lab.run import Run


def runs(scale: str) -> list[Run]:
    """The last two networks of the scale: MobileNetV2 and VGG16 on Tiny-ImageNet in the paper."""
    variants = methods("set", "rigl", "dsr", "ggr")
    return sparse(NETWORKS[scale][-2:], variants, SEEDS[scale], sparsities=(0.97,))
