"""What a rewiring with GGR costs in the packed store, in ordinary steps of the same network, batch 128.

Measured on two steps, one that rewires and one that builds the new tables, minus two ordinary ones. ``python -m
benchmarks.packed_rewiring`` runs this alone.
"""

import statistics
import time

import torch

import rewire
from benchmarks.measure import Work
from benchmarks.packed import BATCH, EVERY, network, rewiring, training
from rewire.rewirer.rewirer import Rewirer

Row = dict[str, object]
ROUNDS = 5
SPARSITY = 0.97
TARGETS: dict[tuple[str, float | None], float | None] = {
    ("resnet-18", None): 1.0,
    ("resnet-18", 1.0): 1.0,
    ("mlp", None): None,
    ("mlp", 1.0): None,
}


def trained(name: str, sample: float | None) -> tuple[Work, Rewirer]:
    """One training step, and its rewirer."""
    model, shape, classes = network(name)
    x, y = torch.randn(BATCH, *shape), torch.randint(classes, (BATCH,))
    method = rewire.ggr(density=1 - SPARSITY, every=EVERY, until=10**9, sample=sample)
    rewirers: list[Rewirer] = []
    step = training(model, x, y, lambda o: rewirers.append(rewire.sparsify(model, o, method, store="packed")))
    return step, rewirers[0]


def seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def cost(name: str, sample: float | None, target: float | None) -> Row:
    """In turns: two ordinary steps, a rewiring with the step behind it, and so on."""
    step, rewirer = trained(name, sample)
    rewires = rewiring(step, rewirer)
    rewires()  # warms up: memory and code
    ordinary, both = [], []
    for _ in range(ROUNDS):
        ordinary += [seconds(step), seconds(step)]
        both.append(seconds(rewires))
    plain = statistics.median(ordinary)
    steps = statistics.median(both) / plain - 2
    ranking = "all gradients" if sample is None else f"sample={sample:g}"
    return {
        "what": f"rewiring of GGR in ordinary steps: {name} erk {SPARSITY:.0%}, {ranking}",
        "ratio": steps,
        "target": "reported" if target is None else f"at most {target:g}",
        "met": None if target is None else steps <= target,
        "milliseconds": {"ordinary step": 1000 * plain, "rewiring and next step": 1000 * statistics.median(both)},
    }


def rows() -> list[Row]:
    return [cost(name, sample, target) for (name, sample), target in TARGETS.items()]


if __name__ == "__main__":
    for row in rows():
        print(f"{row['what']:75} {row['ratio']:8.2f}   {row['target']}   {row['milliseconds']}", flush=True)
