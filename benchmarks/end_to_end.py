"""Whole trainings on CIFAR-100, dense, masked and packed: seconds per epoch and accuracy; resumable.

``python -m benchmarks.end_to_end`` carries out the same runs as ``rewire train``, appends a line a run to
``docs/results/end_to_end.jsonl`` and prints a table. On two cores it takes about a quarter of an hour, in which nothing
else may run. ``REWIRE_DATA`` names the folder with CIFAR-100.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from rewire.lab.environment import environment
from rewire.lab.experiments.grid import without_ignored
from rewire.lab.experiments.studies.transformers import NETWORKS as TRANSFORMERS
from rewire.lab.experiments.workstation import VGG
from rewire.lab.results import read_metrics
from rewire.lab.run import DENSE, Run
from rewire.lab.training.train import train
from rewire.lab.training.trainer import Place

RESULTS = Path("docs/results/end_to_end.jsonl")
VIT = next(run for run in TRANSFORMERS["workstation"] if run.model == "vit")
NETWORKS = {
    "ResNet-18, a quarter of its width, SGD": replace(VGG, model="resnet-18"),
    "VGG16, a quarter of its width, SGD": VGG,
    "ViT, width 0.5, AdamW": VIT,
}
ARMS: dict[str, Mapping[str, Any]] = {
    "dense": {"method": DENSE},
    "masked": {"method": "ggr", "sparsity": 0.97, "store": "masked"},
    "packed": {"method": "ggr", "sparsity": 0.97, "store": "packed"},
}
EPOCHS = 2


def planned(network: Run, arm: str, epochs: int, limit: int | None) -> Run:
    """The run of a network in one of the three ways, evaluated after its last epoch only."""
    shared = replace(network, epochs=epochs, evaluate_every=epochs, record_losses=False, limit=limit)
    return without_ignored(shared.to_dict() | dict(ARMS[arm]))


def measure(path: Path, epochs: int, limit: int | None = None) -> None:
    """Carry out what is missing; the three ways of one network follow each other."""
    done = {(line["network"], line["arm"]) for line in read(path)}
    path.parent.mkdir(parents=True, exist_ok=True)
    for network, base in NETWORKS.items():
        for arm in ARMS:
            if (network, arm) in done:
                continue
            run = planned(base, arm, epochs, limit)
            with tempfile.TemporaryDirectory() as folder:
                result = train(run, Path(folder) / "run", Place())
                seconds = [line["seconds"] for line in read_metrics(Path(folder) / "run")]
            line = {
                "network": network,
                "arm": arm,
                "run": run.to_dict(),
                "seconds": [round(one, 2) for one in seconds],
                "accuracy": result["accuracy"],
                "environment": environment("cpu"),
            }
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """The lines so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def seconds_per_epoch(line: dict[str, Any]) -> float:
    """The median over all epochs but the last, which ends with the evaluation."""
    seconds: list[float] = line["seconds"]
    return median(seconds[:-1] or seconds)


def table(lines: list[dict[str, Any]]) -> str:
    """One row a network: seconds per epoch, accuracy, and how many times faster packed is than dense."""
    heading = "| network | dense | masked | packed | dense / packed |"
    rows = [heading, "|---|--:|--:|--:|--:|"]
    for network in NETWORKS:
        arms = {line["arm"]: line for line in lines if line["network"] == network}
        if len(arms) == len(ARMS):
            cells = [f"{seconds_per_epoch(arms[arm]):.1f} s, {arms[arm]['accuracy']:.1%}" for arm in ARMS]
            ratio = seconds_per_epoch(arms["dense"]) / seconds_per_epoch(arms["packed"])
            rows.append(f"| {network} | {' | '.join(cells)} | {ratio:.1f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--limit", type=int, help="use at most this many images: to try it out")
    options = parser.parse_args()
    measure(options.out, options.epochs, options.limit)
    print(table(read(options.out)))


if __name__ == "__main__":
    main()
