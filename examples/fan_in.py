"""When a very sparse network does not start to learn: weights drawn for the fan-in that really exists.

    python examples/fan_in.py

A small VGG on scikit-learn's digits at 1 % density, trained with GGR, with and without ``init="fan_in"`` and a
connected start; several seeds each. Without batch norm nothing else rescales the signal of a neuron that has
two inputs left of a thousand; with it, something does.
"""

import statistics
import warnings
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

import rewire
from rewire.lab import models
from rewire.lab.data import augment
from rewire.lab.data import datasets as data

EPOCHS, BATCH, SEEDS = 20, 64, range(5)


def plain_vgg() -> nn.Module:
    """Two convolutions, pool, twice; no batch norm; PyTorch's own initialisation."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise((1, 32, 32, 64, 64))):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if index % 2 else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4, 128), nn.ReLU(), nn.Linear(128, 10))


def train(model: nn.Module, start: str, init: str | None, seed: int, lr: float) -> float:
    """Accuracy on the test set after the last epoch, in percent."""
    digits = data.load("digits")
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    steps = augment.steps_per_epoch(len(digits.train_labels), BATCH)
    method = rewire.ggr(density=0.01, every=steps, until=steps * EPOCHS // 2, start=start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a start is dead is what this example shows
        rewire.sparsify(model, optimizer, method, init=init, seed=seed)
        for epoch in range(EPOCHS):
            for x, y in augment.batches(
                digits.train_images,
                digits.train_labels,
                size=BATCH,
                seed=seed,
                epoch=epoch,
                mean=digits.mean,
                std=digits.std,
            ):
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
    model.eval()
    with torch.no_grad():
        images = augment.normalise(digits.test_images, digits.mean, digits.std)
        hits = model(images).argmax(1) == digits.test_labels
    return 100 * float(hits.double().mean())


def main() -> None:
    print(f"digits, GGR at 1 % density, {EPOCHS} epochs: test accuracy in % for {len(SEEDS)} seeds")
    for name, lr in (("without batch norm", 0.05), ("with batch norm", 0.1)):
        for start in ("uniform", "connected-uniform", "erk", "connected-erk"):
            for init in (None, "fan_in"):
                values = []
                for seed in SEEDS:
                    torch.manual_seed(seed)
                    model = plain_vgg() if lr == 0.05 else models.build("vgg-small", classes=10, image=(1, 8, 8))
                    values.append(train(model, start, init, seed, lr))
                each = " ".join(f"{value:5.1f}" for value in values)
                spread = f"{statistics.mean(values):5.1f} ± {statistics.stdev(values):4.1f}"
                print(f"{name:19} {start:18} init={init or 'none':7} {spread}   ({each})", flush=True)


if __name__ == "__main__":
    main()
