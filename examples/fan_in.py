"""When a very sparse network does not start to learn: weights drawn for the fan-in that really exists.

    python examples/fan_in.py

A small VGG on scikit-learn's digits at 1 % uniform density, trained with GGR, with and without ``init="fan_in"``
and a connected start; several seeds each.
"""

import statistics
import warnings

import torch
import torch.nn.functional as F

import rewire
from rewire.lab import augment, data, models

EPOCHS, BATCH, SEEDS = 30, 64, range(6)


def train(start: str, init: str | None, seed: int) -> float:
    """Accuracy on the test set after the last epoch, in percent."""
    digits = data.load("digits")
    torch.manual_seed(seed)
    model = models.build("vgg-small", classes=10, image=digits.image)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    steps = augment.steps_per_epoch(len(digits.train_labels), BATCH)
    method = rewire.ggr(density=0.01, every=steps, until=steps * EPOCHS // 2, start=start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a start is dead is what this example shows
        rewire.sparsify(model, optimizer, method, init="fan_in" if init else None, seed=seed)
    scaling = {"mean": digits.mean, "std": digits.std}
    for epoch in range(EPOCHS):
        for x, y in augment.batches(
            digits.train_images, digits.train_labels, size=BATCH, seed=seed, epoch=epoch, **scaling
        ):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
    model.eval()
    with torch.no_grad():
        hits = model(augment.normalise(digits.test_images, **scaling)).argmax(1) == digits.test_labels
    return 100 * hits.double().mean().item()


def main() -> None:
    print(f"vgg-small on digits, GGR at 1 % density, {EPOCHS} epochs: test accuracy in % for {len(SEEDS)} seeds")
    for start in ("uniform", "connected-uniform", "erk", "connected-erk"):
        for init in (None, "fan_in"):
            values = [train(start, init, seed) for seed in SEEDS]
            each = " ".join(f"{value:5.1f}" for value in values)
            spread = f"{statistics.mean(values):5.1f} ± {statistics.stdev(values):4.1f}"
            print(f"{start:18} init={init or 'none':7} {spread}   ({each})", flush=True)


if __name__ == "__main__":
    main()
