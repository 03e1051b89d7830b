"""Table 1 of the paper: networks x {dense, SET, RigL, DSR, GGR} x {90, 97, 99 %} x {ERK, uniform}."""

from dataclasses import replace

from rewire.lab.experiments import workstation as ws
from rewire.lab.experiments.grid import NETWORKS, SEEDS, dense, methods, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.run import Run

VARIANTS = methods("set", "rigl", "dsr", "ggr")


@register("table1", tables="table")
def table1(scale: str) -> list[Run]:
    """Networks x methods x sparsities x starts; table 2 averages the same runs."""
    if scale == "workstation":
        return narrow_vgg() + denser_vgg() + full_vgg() + other_networks() + dense_and_masked() + prefer_random()
    return dense(NETWORKS[scale], SEEDS[scale]) + sparse(NETWORKS[scale], VARIANTS, SEEDS[scale])


def narrow_vgg() -> list[Run]:
    """VGG16 at the sparsity that matches the paper's 99 %, with more seeds from uniform starts."""
    return ws.cells(ws.VGG, ws.HIGH) + ws.cells(ws.VGG, ws.HIGH, ["uniform"], seeds=ws.MORE)


def denser_vgg() -> list[Run]:
    """VGG16 at the sparsity that matches the paper's 97 %."""
    return ws.cells(ws.VGG, ws.MIDDLE)


def full_vgg() -> list[Run]:
    """VGG16 at full width with the paper's own 99 %, where RigL and DSR fail in the paper."""
    return ws.cells(ws.FULL_VGG, 0.99, ["uniform"])


def other_networks() -> list[Run]:
    """MobileNetV2 from ERK, where the paper has GGR far ahead, and ResNet-18 from a uniform start."""
    return ws.cells(ws.MOBILENET, ws.HIGH, ["erk"]) + ws.cells(ws.RESNET, ws.HIGH, ["uniform"])


def dense_and_masked() -> list[Run]:
    """What a dense training and the masked store cost: one seed of VGG16 each."""
    masked = ws.cells(replace(ws.VGG, store="masked"), ws.HIGH, ["uniform"], methods("ggr"), seeds=range(1))
    return dense([ws.VGG], range(1)) + masked


def prefer_random() -> list[Run]:
    """SET and GGR where the paper has SET ahead: 90 %, ERK. So many weights are faster in the masked store."""
    return ws.cells(replace(ws.VGG, store="masked"), ws.LOW, ["erk"], methods("set", "ggr"))
