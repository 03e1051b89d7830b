"""Table 1 of the paper: networks x {dense, SET, RigL, DSR, GGR} x {90, 97, 99 %} x {ERK, uniform}."""

from dataclasses import replace

from rewire.lab.experiments import workstation as ws
from rewire.lab.experiments.grid import COMPARED, NETWORKS, SEEDS, dense, methods, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.run import Run


@register("table1", tables="table")
def table1(scale: str) -> list[Run]:
    """Networks x methods x sparsities x starts; table 2 averages the same runs."""
    if scale == "workstation":
        vgg = narrow_vgg() + denser_vgg() + full_vgg()
        return vgg + mobilenet() + resnet() + dense_and_masked() + prefer_random()
    return dense(NETWORKS[scale], SEEDS[scale]) + sparse(NETWORKS[scale], COMPARED, SEEDS[scale])


def narrow_vgg() -> list[Run]:
    """VGG16 at the sparsity that matches the paper's 99 %."""
    return ws.cells(ws.VGG, ws.HIGH, seeds=ws.CLAIM_SEEDS)


def denser_vgg() -> list[Run]:
    """VGG16 at the sparsity that matches the paper's 97 %."""
    return ws.cells(ws.VGG, ws.MIDDLE, seeds=ws.CLAIM_SEEDS)


def full_vgg() -> list[Run]:
    """VGG16 at full width with the paper's own 99 %."""
    return ws.cells(ws.FULL_VGG, 0.99, ["uniform"], seeds=ws.CLAIM_SEEDS)


def mobilenet() -> list[Run]:
    """MobileNetV2 from ERK, where the paper has GGR far ahead."""
    return ws.cells(ws.MOBILENET, ws.HIGH, ["erk"], seeds=ws.CLAIM_SEEDS)


def resnet() -> list[Run]:
    """ResNet-18 from a uniform start."""
    return ws.cells(ws.RESNET, ws.HIGH, ["uniform"], seeds=ws.CLAIM_SEEDS)


def dense_and_masked() -> list[Run]:
    """The dense networks, and VGG16 once in the masked store: what the packed store saves."""
    masked = ws.cells(replace(ws.VGG, store="masked"), ws.HIGH, ["uniform"], methods("ggr"), seeds=range(1))
    return dense([ws.VGG, ws.RESNET, ws.MOBILENET], ws.SEEDS) + masked


def prefer_random() -> list[Run]:
    """SET and GGR where the paper has SET ahead: a large network at 90 %, from ERK."""
    return ws.cells(ws.RESNET, ws.LOW, ["erk"], methods("set", "ggr"), seeds=ws.CLAIM_SEEDS)
