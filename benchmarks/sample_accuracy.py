"""What does ranking a sample of the gradients cost in accuracy? GGR on the embedded digits, paired by seed; resumable.

``python -m benchmarks.sample_accuracy --seeds 20`` appends a line a run to ``docs/results/samples.jsonl`` and prints
the mean accuracy of each, and its mean paired difference from the exact ranking with its 95 % interval.
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import rewire
from rewire.core import Method
from rewire.lab.run import Run
from rewire.lab.training.train import train
from rewire.parts.start import AnyStart

BASE = Run(data="digits", model="vgg-small", epochs=12, batch_size=64, sparsity=0.97, start="erk")
RESULTS = Path("docs/results/samples.jsonl")


def as_many(*, density: float, every: int, until: int, fraction: float = 0.1, start: AnyStart = "erk") -> Method:
    """As many candidates as a layer has weights."""
    return rewire.ggr(density=density, every=every, until=until, fraction=fraction, start=start, sample=1.0)


def a_quarter(*, density: float, every: int, until: int, fraction: float = 0.1, start: AnyStart = "erk") -> Method:
    """A quarter as many."""
    return rewire.ggr(density=density, every=every, until=until, fraction=fraction, start=start, sample=0.25)


METHODS = {"exact": "ggr", "sample=1": f"{__file__}:as_many", "sample=0.25": f"{__file__}:a_quarter"}


def recorded(path: Path) -> dict[tuple[str, int], float]:
    """The accuracies measured before, by method and seed."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(line["method"], line["seed"]): line["accuracy"] for line in lines}


def measure(path: Path, seeds: int) -> None:
    """Carry out what is missing, seed by seed, so that a part is a smaller study."""
    done = recorded(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(seeds):
        for label, method in METHODS.items():
            if (label, seed) in done:
                continue
            with tempfile.TemporaryDirectory() as folder:
                result = train(replace(BASE, method=method, seed=seed), Path(folder) / "run")
            with path.open("a") as file:
                file.write(json.dumps({"method": label, "seed": seed, "accuracy": result["accuracy"]}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measure(options.out, options.seeds)
    done = recorded(options.out)
    for label in METHODS:
        seeds = [seed for name, seed in done if name == label and ("exact", seed) in done]
        percent = 100 * np.array([done[label, seed] for seed in seeds])
        apart = percent - 100 * np.array([done["exact", seed] for seed in seeds])
        half = 1.96 * apart.std(ddof=1) / len(seeds) ** 0.5
        print(
            f"{label:12} {percent.mean():.2f} +- {percent.std(ddof=1):.2f} %, minus exact: {apart.mean():+.2f} +- "
            f"{half:.2f} ({len(seeds)} seeds)"
        )


if __name__ == "__main__":
    main()
