"""GGR and its rivals on scikit-learn's digits, with an ordinary PyTorch loop.

    python examples/digits.py

Nothing in the loop knows about sparsity; only ``rewire.sparsify`` does.
"""

import statistics

import torch
import torch.nn.functional as F
from torch import nn

import rewire
from rewire.lab.data.datasets import load

EPOCHS, BATCH, SEEDS = 15, 64, (0, 1, 2)
METHODS = ("static", "set", "rigl", "dsr", "ggr")


def network() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def train(name: str, density: float, seed: int) -> float:
    """Accuracy on the test set after the last epoch."""
    data = load("digits")
    images, labels = data.train_images.float() / 255, data.train_labels
    torch.manual_seed(seed)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    steps = -(-len(labels) // BATCH)
    if name != "dense":
        method = rewire.METHODS[name](density=density, every=steps, until=steps * EPOCHS // 2)
        rewire.sparsify(model, optimizer, method, seed=seed)
    for _epoch in range(EPOCHS):
        for rows in torch.randperm(len(labels)).split(BATCH):
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        hits = model(data.test_images.float() / 255).argmax(1) == data.test_labels
    return 100 * float(hits.double().mean())


def main() -> None:
    print(f"digits, MLP 64-256-256-10, {EPOCHS} epochs, {len(SEEDS)} seeds: test accuracy in % (mean ± deviation)")
    print(f"{'':8}{'97 % sparse':>16}{'99 % sparse':>16}")
    for name in ("dense", *METHODS):
        cells = []
        for density in (0.03, 0.01):
            values = [train(name, density, seed) for seed in SEEDS]
            cells.append(f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}")
        print(f"{name:8}{cells[0]:>16}{cells[1]:>16}")


if __name__ == "__main__":
    main()
