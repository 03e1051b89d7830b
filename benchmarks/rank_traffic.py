"""What each of two ranks sends in a step of DDP: dense and packed ResNet-18 for CIFAR. Formulas; tests count the same.

``python -m benchmarks.rank_traffic`` prints the table of docs/scale.md.
"""

import torch

import rewire
from rewire.analysis.scale import rewiring_packed, step_packed
from rewire.distributed.group import summed
from rewire.lab import models

RANKS, EVERY = 2, 391  # steps between rewirings: one epoch of CIFAR at batch 128
SPARSITIES = (0.90, 0.97, 0.99)


def main() -> None:
    columns = ("sparsity", "dense DDP, each step", "packed, each step", "of these, packed weights", "dense over packed")
    print("|", " | ".join((*columns, "a rewiring of GGR", f"spread over {EVERY} steps")), "|")
    for sparsity in SPARSITIES:
        model = models.build("resnet-18", classes=10, image=(3, 32, 32))
        parameters = sum(parameter.numel() for parameter in model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rewirer = rewire.sparsify(model, optimizer, rewire.ggr(density=1 - sparsity, every=EVERY, until=10**6))
        shapes, nnz = [layer.shape for layer in rewirer.layers], [layer.nnz for layer in rewirer.layers]
        rest = parameters - sum(shape.numel() for shape in shapes)
        dense, weights, others = (
            summed(parameters, RANKS, 4),
            step_packed(nnz, RANKS).bytes,
            summed(rest, RANKS, 4),
        )
        rewiring = rewiring_packed(shapes, RANKS).bytes
        cells = [dense, weights + others, weights, dense / (weights + others), rewiring, rewiring / EVERY]
        megabytes = [f"{cell / 1e6:.2f}" for cell in cells]
        megabytes[3] = f"{cells[3]:.1f}"
        print(f"| {sparsity:.0%} | {' | '.join(megabytes)} |")


if __name__ == "__main__":
    main()
