"""Transformers with AdamW: a small ViT on CIFAR-100, and a character-level GPT on Python's standard library."""

from dataclasses import replace

from rewire.lab.experiments.grid import dense, methods, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.run import Run

_GPT = Run(
    data="stdlib",
    model="gpt",
    width=0.5,
    epochs=4,
    batch_size=64,
    optimizer="adamw",
    decay="cosine",
    lr=2e-3,
    weight_decay=0.05,
    every=64,
    store="packed",
    record_losses=True,
    evaluate_every=2,
)
_VIT = replace(_GPT, data="cifar100", model="vit", lr=1e-3, batch_size=128, every=98)
NETWORKS = {
    "demo": [replace(_GPT, limit=256, epochs=2, every=4, width=0.25, store="masked")],
    "laptop": [replace(_GPT, limit=4096)],
    "workstation": [_GPT, _VIT],
    "paper": [replace(_GPT, width=1.0, epochs=20), replace(_VIT, width=1.0, epochs=50)],
}
SEEDS = {"demo": range(2), "laptop": range(1), "workstation": range(3), "paper": range(3)}


@register("transformers", tables="table1")
def transformers(scale: str) -> list[Run]:
    """Dense, RigL and GGR at 90 and 97 % from ERK."""
    return [run for network in NETWORKS[scale] for run in one_network(network, scale)]


def one_network(network: Run, scale: str) -> list[Run]:
    """The runs of one transformer."""
    variants = methods("rigl", "ggr")
    runs = sparse([network], variants, SEEDS[scale], sparsities=(0.9, 0.97), starts=("erk",))
    return dense([network], SEEDS[scale]) + runs
