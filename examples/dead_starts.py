"""How often a start of MobileNetV2 lets no signal through: a question about its topology, without any data.

python examples/dead_starts.py
"""

import rewire
from rewire.lab import models
from rewire.model.reachability import cut_layers
from rewire.model.select import find_layers

SEEDS = range(20)


def main() -> None:
    print(f"MobileNetV2 for CIFAR-100: dead starts of {len(SEEDS)} seeds")
    for width in (1.0, 0.5):
        model = models.build("mobilenet-v2", classes=100, image=(3, 32, 32), width=width)
        found, _ = find_layers(model)
        specs = [one.spec for one in found]
        total = sum(spec.numel for spec in specs)
        for density in (0.03, 0.01):
            for name in ("uniform", "erk", "connected-uniform", "connected-erk"):
                dead = 0
                for seed in SEEDS:
                    placed = rewire.parts.STARTS[name](specs, round(density * total), rewire.core.Context(seed=seed))
                    wiring = {one.module: (one.spec, where) for one, where in zip(found, placed, strict=True)}
                    dead += bool(cut_layers(model, wiring))
                print(f"width {width}, {1 - density:.0%} sparse, {name:18} {dead:2}", flush=True)


if __name__ == "__main__":
    main()
