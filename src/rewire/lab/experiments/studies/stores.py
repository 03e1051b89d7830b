"""Masked against packed: the same runs in either store reach the same accuracy within their spread over seeds."""

from dataclasses import replace

from rewire.attach import STORES
from rewire.lab.experiments.grid import NETWORKS, methods, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.run import Run

SEEDS = {"demo": range(5), "laptop": range(3), "workstation": range(3), "paper": range(3)}


@register("stores", tables="table1")
def stores(scale: str) -> list[Run]:
    """The masked store against the packed one: both networks of the digits, or ResNet-18 on CIFAR-100."""
    networks = NETWORKS["demo"] if scale == "demo" else NETWORKS[scale][1:2]
    if scale == "laptop":  # minutes a run on one core
        networks = [replace(networks[0], width=0.25, limit=5_000, epochs=10, batch_size=64)]
    variants, sparsity = (methods("rigl", "ggr"), 0.97) if scale == "demo" else (methods("ggr"), 0.9)
    runs = sparse(networks, variants, SEEDS[scale], sparsities=(sparsity,), starts=("erk",))
    return [replace(run, store=store) for run in runs for store in STORES]
