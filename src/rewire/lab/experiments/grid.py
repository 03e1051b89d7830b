"""The product of choices, as a list of runs; and the settings that the paper's experiments share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from rewire.lab.run import DENSE, Run

STARTS = ("erk", "uniform")
SPARSITIES = (0.9, 0.97, 0.99)

_DIGITS = Run(data="digits", model="vgg-small", epochs=12, batch_size=64)
_LAPTOP = Run(data="cifar100", model="resnet-18", width=0.25, epochs=12, limit=10_000)
_WORKSTATION = Run(data="cifar100", model="vgg16", width=0.25, epochs=12, every=98, evaluate_every=4, store="packed")
_CIFAR = Run(data="cifar100", model="resnet-18", epochs=100)
_TINY = Run(data="tiny-imagenet", model="vgg16", epochs=200)

NETWORKS = {
    "demo": [_DIGITS, replace(_DIGITS, model="mlp")],
    "laptop": [replace(_LAPTOP, model="mobilenet-v2", width=0.5), _LAPTOP],
    "workstation": [
        _WORKSTATION,
        *(replace(_WORKSTATION, model=name) for name in ("resnet-18-stride2", "mobilenet-v2-stride2")),
    ],
    "paper": [
        replace(_CIFAR, model="mobilenet-v2"),
        _CIFAR,
        replace(_TINY, model="mobilenet-v2"),
        _TINY,
    ],
}
SEEDS = {"demo": range(2), "laptop": range(1), "workstation": range(3), "paper": range(3)}


def grid(**choices: Any) -> list[Run]:
    """Every combination of some choices for the fields of a run. A single value holds for all runs.

    A choice may set several fields at once: ``method=["rigl", {"method": "ggr", "growth": "random"}]``. What has no
    effect on a run (the sparsity of a dense one) is left out of it, and each run is listed once. Seeds vary slowest, so
    that the first runs show all combinations.

    >>> [run.label for run in grid(model="mlp", method=["rigl", "ggr"], sparsity=0.9, seed=range(2))][:3]
    ['mlp digits rigl 90% erk seed 0', 'mlp digits ggr 90% erk seed 0', 'mlp digits rigl 90% erk seed 1']
    >>> [run.label for run in grid(model="mlp", method=["dense", "ggr"], sparsity=[0.9, 0.97])][::2]
    ['mlp digits dense seed 0', 'mlp digits ggr 97% erk seed 0']
    """
    order = sorted(choices, key=lambda name: name != "seed")
    combinations = product(*([{name: value} for value in _several(choices[name])] for name in order))
    runs = []
    for combination in combinations:
        values: dict[str, Any] = {}
        for choice in combination:
            ((name, value),) = choice.items()
            values |= value if isinstance(value, Mapping) else {name: value}
        runs.append(without_ignored(values))
    return list(dict.fromkeys(runs))


def without_ignored(values: Mapping[str, Any]) -> Run:
    """The run of some fields, less those that would have no effect on it."""
    used = dict(values)
    if used.get("method") == DENSE:
        used["sparsity"] = 0.0
    drop = {name for name, _ in Run.from_dict(used).ignored()}
    return Run(**{name: value for name, value in used.items() if name not in drop})


def _several(choice: Any) -> Sequence[Any]:
    return list(choice) if isinstance(choice, (list, tuple, range)) else [choice]


def dense(networks: Iterable[Run], seeds: Iterable[int]) -> list[Run]:
    """The dense reference of each network."""
    runs = [without_ignored(base.to_dict() | {"method": DENSE}) for base in networks]
    return [replace(run, seed=seed) for run, seed in product(runs, seeds)]


def sparse(
    networks: Iterable[Run],
    variants: Sequence[dict[str, str]],
    seeds: Iterable[int],
    sparsities: Sequence[float] = SPARSITIES,
    starts: Sequence[str] = STARTS,
) -> list[Run]:
    """Every network with every variant (method, growth, ...), sparsity and start; seeds vary slowest."""
    return [
        replace(base, sparsity=sparsity, start=start, seed=seed, **variant)  # type: ignore[arg-type]
        for seed, base, sparsity, start, variant in product(seeds, networks, sparsities, starts, variants)
    ]


def methods(*names: str) -> list[dict[str, str]]:
    """Variants that differ by their method only."""
    return [{"method": name} for name in names]


COMPARED = methods("set", "rigl", "dsr", "ggr")  # in the paper's tables


def changed(run: Run, changes: Mapping[str, Any]) -> Run:
    """A run with other settings, less those that would have no effect on it."""
    ignored = {name for name, _ in Run.from_dict(run.to_dict() | dict(changes)).ignored()}
    return replace(run, **{name: value for name, value in changes.items() if name not in ignored})
