"""What the experiments share: the settings of each scale, and the product of methods, sparsities and starts."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

from rewire.lab.run import DENSE, Run

STARTS = ("erk", "uniform")
SPARSITIES = (0.9, 0.97, 0.99)

_DIGITS = Run(data="digits", model="vgg-small", epochs=12, batch_size=64)
_LAPTOP = Run(data="cifar100", model="resnet-18", width=0.25, epochs=12, limit=10_000)
_CIFAR = Run(data="cifar100", model="resnet-18", epochs=100)
_TINY = Run(data="tiny-imagenet", model="vgg16", epochs=200)

NETWORKS = {
    "demo": [_DIGITS, replace(_DIGITS, model="mlp")],
    "laptop": [replace(_LAPTOP, model="mobilenet-v2", width=0.5), _LAPTOP],
    "paper": [
        replace(_CIFAR, model="mobilenet-v2"),
        _CIFAR,
        replace(_TINY, model="mobilenet-v2"),
        _TINY,
    ],
}
SEEDS = {"demo": range(2), "laptop": range(1), "paper": range(3)}


def dense(networks: Iterable[Run], seeds: Iterable[int]) -> list[Run]:
    """The dense reference of each network."""
    return [replace(base, method=DENSE, sparsity=0.0, seed=seed) for base, seed in product(networks, seeds)]


def sparse(
    networks: Iterable[Run],
    variants: Sequence[dict[str, str]],
    seeds: Iterable[int],
    sparsities: Sequence[float] = SPARSITIES,
    starts: Sequence[str] = STARTS,
) -> list[Run]:
    """Every network with every variant (method, growth, ...), sparsity and start. Seed by seed: a part shows all."""
    return [
        replace(base, sparsity=sparsity, start=start, seed=seed, **variant)  # type: ignore[arg-type]
        for seed, base, sparsity, start, variant in product(seeds, networks, sparsities, starts, variants)
    ]


def methods(*names: str) -> list[dict[str, str]]:
    """Variants that differ by their method only."""
    return [{"method": name} for name in names]
