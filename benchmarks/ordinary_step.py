"""An ordinary training step (no rewiring) with the masked store, against the same model without Rewire."""

import torch
import torch.nn.functional as F
from torch import nn

import rewire
from benchmarks.measure import Work, interleaved
from rewire.lab import models

Row = dict[str, object]


def steps(model: nn.Module, x: torch.Tensor, y: torch.Tensor, count: int, sparse: bool) -> Work:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    if sparse:
        rewire.sparsify(model, optimizer, rewire.ggr(density=0.1, every=10**9, until=10**9))

    def work() -> None:
        for _ in range(count):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    return work


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def resnet() -> nn.Module:
    return models.build("resnet-18", classes=100, image=(3, 32, 32), width=0.5)


def rows() -> list[Row]:
    results = []
    for name, build, shape, count, rounds, limit in (
        ("MLP 784-512-512-10, batch 128", mlp, (784,), 20, 25, 1.10),
        ("ResNet-18 (half width, CIFAR), batch 128", resnet, (3, 32, 32), 1, 21, 1.02),
    ):
        x, y = torch.randn(128, *shape), torch.randint(10, (128,))
        works = {kind: steps(build(), x, y, count, kind == "masked") for kind in ("plain", "masked")}
        median = interleaved(works, rounds)
        results.append(
            {
                "what": f"ordinary step: {name}",
                "ratio": median["masked"] / median["plain"],
                "target": f"at most {limit}",
                "met": median["masked"] / median["plain"] <= limit,
                "milliseconds": {kind: 1000 * value / count for kind, value in median.items()},
            }
        )
    return results
