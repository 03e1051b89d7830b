"""How much of the paper's networks, at full width, is left when empty neurons and unused inputs are removed exactly.

Each network is made sparse by ``rewire.ggr`` and trained for a few steps with rewirings, on noise: the topology is
really GGR's, and batch norm has left its initial state, so that constants are not zero. Nothing is emptied by hand.

python examples/shrink_networks.py                     all twelve, a few minutes
python examples/shrink_networks.py mobilenet-v2 0.25   one of them, at a quarter of the width
"""

import sys
import time
import warnings

import torch
import torch.nn.functional as F

import rewire
from rewire.lab import models
from rewire.shrinking.shrink import shrink_with_report

NETWORKS = {"mobilenet-v2": (32, 100), "resnet-18": (32, 100), "vgg16": (64, 200)}  # height of an image, classes
STEPS, EVERY, BATCH = 8, 2, 8


def measure(name: str, sparsity: float, start: str, width: float) -> None:
    side, classes = NETWORKS[name]
    torch.manual_seed(0)
    model = models.build(name, classes=classes, image=(3, side, side), width=width, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    method = rewire.ggr(density=1 - sparsity, every=EVERY, until=STEPS, start=start)
    rewirer = rewire.sparsify(model, optimizer, method)
    example = torch.randn(2, 3, side, side)
    first = shrink_with_report(model, example)[1]
    for _ in range(STEPS):
        x, y = torch.randn(BATCH, 3, side, side), torch.randint(classes, (BATCH,))
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    began = time.perf_counter()
    last = shrink_with_report(model, example)[1]
    shares = first.after / first.before, last.after / last.before, last.weights[1] / last.weights[0]
    print(
        f"{name:12} {sparsity:.0%} {start:8} {len(rewirer.history)} rewirings  left: {shares[0]:7.2%} at the start, "
        f"{shares[1]:7.2%} now, {shares[2]:7.2%} of the weights  "
        f"apart: {max(first.difference, last.difference):.0e}  {time.perf_counter() - began:.0f} s",
        flush=True,
    )


def main() -> None:
    names = sys.argv[1:2] or list(NETWORKS)
    width = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
    warnings.simplefilter("ignore")  # some of these starts let no signal through, which is part of the answer
    for name in names:
        for sparsity in (0.97, 0.99):
            for start in ("erk", "uniform"):
                measure(name, sparsity, start, width)


if __name__ == "__main__":
    main()
