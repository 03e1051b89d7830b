"""Do both stores reach the same accuracy? Paired runs on the embedded digits, many seeds; resumable.

``python -m benchmarks.store_accuracy --seeds 200`` appends a line a run to ``docs/results/stores.jsonl`` and prints the
mean paired difference, packed minus masked, with its 95 % interval. It takes about an hour and a half on one core.
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from rewire.lab.run import Run
from rewire.lab.training.train import train

METHODS, STORES = ("rigl", "ggr"), ("masked", "packed")
BASE = Run(data="digits", model="vgg-small", epochs=12, batch_size=64, sparsity=0.97, start="erk")
RESULTS = Path("docs/results/stores.jsonl")


def recorded(path: Path) -> dict[tuple[str, str, int], dict[str, float]]:
    """What was measured before, by method, store and seed."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(line["method"], line["store"], line["seed"]): line for line in lines}


def measure(path: Path, seeds: int) -> None:
    """Carry out what is missing, seed by seed, so that a part is a smaller study."""
    done = recorded(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(seeds):
        for method in METHODS:
            for store in STORES:
                if (method, store, seed) in done:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    result = train(replace(BASE, method=method, store=store, seed=seed), Path(folder) / "run")
                line = {"method": method, "store": store, "seed": seed}
                line |= {name: result[name] for name in ("accuracy", "loss")}
                with path.open("a") as file:
                    file.write(json.dumps(line) + "\n")


def difference(path: Path, method: str, metric: str) -> tuple[float, float, int]:
    """The mean of packed minus masked over seeds, half its 95 % interval (normal), and the number of pairs."""
    done = recorded(path)
    seeds = [seed for name, store, seed in done if name == method and store == "packed"]
    pairs = [(done[method, "packed", s][metric], done[method, "masked", s][metric]) for s in seeds]
    apart = np.array([packed - masked for packed, masked in pairs])
    return float(apart.mean()), float(1.96 * apart.std(ddof=1) / len(apart) ** 0.5), len(apart)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measure(options.out, options.seeds)
    for method in METHODS:
        for metric, scale in (("accuracy", 100.0), ("loss", 1.0)):
            mean, half, pairs = difference(options.out, method, metric)
            print(f"{method:5} {metric:8} packed - masked: {scale * mean:+.3f} +- {scale * half:.3f} ({pairs} pairs)")


if __name__ == "__main__":
    main()
