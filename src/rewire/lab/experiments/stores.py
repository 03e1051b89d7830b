"""Masked against packed: the same runs held by either store reach the same accuracy within their spread over seeds."""

from dataclasses import replace

from rewire.lab.experiments.grid import NETWORKS, methods, sparse
from rewire.lab.run import Run

STORES = ("masked", "packed")
SEEDS = {"demo": range(5), "laptop": range(3), "paper": range(3)}


def runs(scale: str) -> list[Run]:
    """Both networks of the digits at 97 %; on CIFAR-100 ResNet-18 at 90 %."""
    networks = NETWORKS["demo"] if scale == "demo" else NETWORKS[scale][1:2]
    if scale == "laptop":  # minutes a run on one core
        networks = [replace(networks[0], width=0.25, limit=5_000, epochs=10, batch_size=64)]
    variants, sparsity = (methods("rigl", "ggr"), 0.97) if scale == "demo" else (methods("ggr"), 0.9)
    made = sparse(networks, variants, SEEDS[scale], sparsities=(sparsity,), starts=("erk",))
    return [replace(run, store=store) for run in made for store in STORES]
