"""Shrinking: how much smaller the paper's networks become, and how much faster a really trained one runs."""

import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn

import rewire
from benchmarks.measure import Work, interleaved
from rewire.lab import models
from rewire.lab.network import read_network
from rewire.lab.run import Run
from rewire.lab.train import train
from rewire.shrinking.shrink import shrink_with_report

Row = dict[str, object]
WIDTH = 0.25  # of the paper's networks, to be done in a minute


def forward(model: nn.Module, x: torch.Tensor, count: int) -> Work:
    model.eval()

    def work() -> None:
        with torch.no_grad():
            for _ in range(count):
                model(x)

    return work


def trained(start: str, sparsity: float = 0.99) -> list[Row]:
    """A VGG trained on digits with GGR and shrunk, against itself before: dense, zeros in place."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(Run(sparsity=sparsity, start=start, epochs=20), Path(folder))
        found = read_network(Path(folder))
    small, report = shrink_with_report(found.model, found.example)
    name = f"vgg-small, GGR {sparsity:.0%} {start}"
    rows: list[Row] = [
        {
            "what": f"shrink: {name}, parameters left",
            "ratio": report.after / report.before,
            "target": "reported",
            "met": None,
            "accuracy": result["accuracy"],
            "difference": report.difference,
        }
    ]
    for batch, count in ((1, 50), (64, 5)):
        x = torch.randn(batch, *found.image, generator=torch.Generator().manual_seed(0))
        median = interleaved(
            {"dense": forward(found.model, x, count), "shrunk": forward(small, x, count)},
            rounds=15,
        )
        rows.append(
            {
                "what": f"shrink: {name}, times faster, batch {batch}",
                "ratio": median["dense"] / median["shrunk"],
                "target": "reported",
                "met": None,
                "milliseconds": {kind: 1000 * value / count for kind, value in median.items()},
            }
        )
    return rows


def untrained() -> list[Row]:
    """The paper's networks as they start: the hard case, for training empties more neurons than the start."""
    rows: list[Row] = []
    for name in ("vgg16", "resnet-18", "mobilenet-v2"):
        for start in ("erk", "uniform"):
            for sparsity in (0.97, 0.99):
                model = models.build(name, classes=100, image=(3, 32, 32), width=WIDTH, seed=0)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of starts that let no signal through
                    rewire.sparsify(model, optimizer, rewire.static(density=1 - sparsity, start=start))
                report = shrink_with_report(model, torch.zeros(1, 3, 32, 32))[1]
                what = f"shrink: {name} x{WIDTH:g}, {sparsity:.0%} {start}, parameters left"
                ratio = report.after / report.before
                rows.append({"what": what, "ratio": ratio, "target": "exact", "met": report.difference <= 1e-9})
    return rows


def rows() -> list[Row]:
    return [*trained("erk"), *trained("uniform"), *trained("connected-erk"), *untrained()]
