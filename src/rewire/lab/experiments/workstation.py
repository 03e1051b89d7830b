"""The scale ``workstation``: CIFAR-100 in about a day of one core, with runs for each claim of the paper.

Every run sees 600,000 images: 12 epochs instead of the paper's 100, with its learning-rate schedule scaled. Weights are
rewired four times an epoch (23 times in all, where the paper rewires 50 times), and the test set is evaluated three
times. Networks have a quarter of the paper's channels and packed weights. ResNet-18 and MobileNetV2 have
a stem with stride 2: with stride 1, their large activations take three to four times as long.

Every cell has three seeds, and five where a claim of the paper rests on it. VGG16 at full width is trained at 99 %
alone: denser, its runs take too long.

What makes a sparse network hard to train is the number of connections of a neuron. At quarter width a neuron has a
quarter of the inputs, so that 96 % sparsity leaves it as many connections as 99 % does at full width: ``matched``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rewire.lab.experiments.grid import COMPARED, NETWORKS, sparse
from rewire.lab.experiments.grid import SEEDS as ALL_SEEDS
from rewire.lab.run import Run

VGG, RESNET, MOBILENET = NETWORKS["workstation"]
FULL_VGG, WIDTH = replace(VGG, width=1.0), VGG.width
SEEDS, CLAIM_SEEDS = ALL_SEEDS["workstation"], range(5)


def matched(sparsity: float, width: float = WIDTH) -> float:
    """The sparsity at which a neuron of a narrower network has the connections of one at full width.

    >>> [matched(sparsity) for sparsity in (0.9, 0.97, 0.99)]
    [0.6, 0.88, 0.96]
    """
    return round(1 - (1 - sparsity) / width, 6)


HIGH, MIDDLE, LOW = matched(0.99), matched(0.97), matched(0.9)


def cells(
    network: Run,
    sparsity: float,
    starts: Sequence[str] = ("erk", "uniform"),
    variants: Sequence[dict[str, str]] = COMPARED,
    seeds: Iterable[int] = SEEDS,
) -> list[Run]:
    """The runs of some cells of a table: one network and sparsity."""
    return sparse([network], variants, seeds, sparsities=(sparsity,), starts=starts)
