"""Trained networks, shrunk and packed: how many parameters are left, and how much faster they run.

``python -m benchmarks.shrink FOLDER`` runs this alone and keeps the trained networks in the folder for the next time.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import rewire
from benchmarks.measure import Work, interleaved
from rewire.lab.run import Run
from rewire.lab.training.network import read_network
from rewire.lab.training.train import train
from rewire.shrinking.shrink import shrink_with_report

Row = dict[str, object]
STARTS = ("erk", "uniform", "connected-erk")
SPARSITIES = (0.97, 0.99)
BATCHES = {1: 50, 64: 5}  # batch size: how many batches one measurement takes


def forward(model: nn.Module, x: torch.Tensor, count: int) -> Work:
    model.eval()

    def work() -> None:
        with torch.inference_mode():
            for _ in range(count):
                model(x)

    return work


def trained(folder: Path, start: str, sparsity: float) -> Iterator[Row]:
    """A VGG trained on digits with GGR: shrunk, packed and both, against the same network dense with zeros in place."""
    run = Run(sparsity=sparsity, start=start, epochs=20)
    result = train(run, folder / run.id)
    network = read_network(folder / run.id)
    small, report = shrink_with_report(network.model, network.example)
    name = f"shrink: vgg-small, GGR {sparsity:.0%} {start}"
    known = {"target": "reported", "met": None, "accuracy": result["accuracy"], "difference": report.difference}
    yield {"what": f"{name}, dense parameters left", "ratio": report.after / report.before, **known}
    yield {"what": f"{name}, weights left", "ratio": report.weights[1] / report.weights[0], **known}
    for batch, count in BATCHES.items():
        x = torch.randn(batch, *network.image, generator=torch.Generator().manual_seed(0))
        models = {
            "dense": network.model,
            "shrunk": small,
            "packed": rewire.pack(network.model, x, measure=True),
            "shrunk and packed": rewire.pack(small, x, measure=True),
        }
        median = interleaved({kind: forward(model, x, count) for kind, model in models.items()}, rounds=15)
        times = {"milliseconds": {kind: 1000 * value / count for kind, value in median.items()}}
        for kind in list(models)[1:]:
            what = f"{name}, {kind}, times faster, batch {batch}"
            yield {"what": what, "ratio": median["dense"] / median[kind], "target": "reported", "met": None, **times}


def each(folder: Path) -> Iterator[Row]:
    """The rows of all networks, each as soon as it is measured."""
    for sparsity in SPARSITIES:
        for start in STARTS:
            yield from trained(folder, start, sparsity)


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return list(each(Path(folder)))


if __name__ == "__main__":
    for row in each(Path(sys.argv[1])):
        print(f"{row['what']:75} {row['ratio']:8.3f}   {row.get('accuracy', row.get('milliseconds'))}", flush=True)
