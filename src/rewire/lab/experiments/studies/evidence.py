"""All runs behind the results page, in the order of their importance: an interrupted sweep has the first answers."""

from dataclasses import replace

from rewire.lab.experiments.grid import COMPARED, NETWORKS, SEEDS, dense, methods, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.experiments.studies import better, connected, equal_weights, transformers
from rewire.lab.experiments.studies.drop import drop
from rewire.lab.experiments.studies.recovery import recovery, starved
from rewire.lab.experiments.studies.table1 import (
    dense_and_masked,
    denser_vgg,
    full_vgg,
    mobilenet,
    narrow_vgg,
    prefer_random,
    resnet,
)
from rewire.lab.experiments.studies.table3 import GLOBAL, IN_PLACE, table3
from rewire.lab.experiments.workstation import VGG
from rewire.lab.run import Run

SMALL_WIDTH = 0.3  # of the dense network that the reduced study compares with


@register("evidence", tables="table1")
def evidence(scale: str) -> list[Run]:
    """Every study of the results page: tables 1, 3 and 4, and what the paper leaves open."""
    return workstation() if scale == "workstation" else reduced(scale)


def workstation() -> list[Run]:
    """The whole study: three seeds of everything before more of anything, the claims before what goes beyond them."""
    scale = "workstation"
    gpt, vit = (transformers.one_network(network, scale) for network in transformers.NETWORKS[scale])
    runs = (
        narrow_vgg()
        + recovery("demo", seeds=range(20))
        + sparse(NETWORKS["demo"], IN_PLACE + GLOBAL, range(5))  # the ablation over twelve settings of the digits
        + recovery(scale)
        + drop(scale)
        + gpt
        + equal_weights.equal_weights(scale)
        + table3(scale)
        + denser_vgg()
        + mobilenet()
        + full_vgg()
        + resnet()
        + better.on_large()
        + prefer_random()
        + vit
        + connected.vgg()
        + better.better(scale)
        + dense_and_masked()
        + connected.mobilenet()
    )
    return sorted(runs, key=lambda run: run.data == VGG.data and run.seed not in SEEDS[scale])


def reduced(scale: str) -> list[Run]:
    """The same questions to one small network: every claim has its cells."""
    network, seeds = NETWORKS[scale][1], SEEDS[scale]
    dropped = [{"method": "ggr", "scope": "network"}]
    return (
        dense([network, replace(network, width=SMALL_WIDTH)], seeds)
        + sparse([network], COMPARED + methods("set_rigl") + GLOBAL[:2], seeds)
        + sparse([network], dropped, seeds, sparsities=(0.97,))
        + sparse([network], COMPARED, seeds, sparsities=(0.99,), starts=(connected.START,))
        + starved(network, 0.97, seeds)
    )
