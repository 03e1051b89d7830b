"""Runs on the embedded digits that are compared seed by seed, appended to a file as they come; resumable."""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rewire.lab.run import Run
from rewire.lab.training.train import train

BASE = Run(data="digits", model="vgg-small", epochs=12, batch_size=64, sparsity=0.97, start="erk")
Key = tuple[str, ...]  # what distinguishes the runs of one seed


class PairedRuns:
    """A file with a line a run: the names and values of its key, its seed and some of its results."""

    def __init__(self, path: Path, names: Sequence[str], results: Sequence[str]) -> None:
        self.path, self.names, self.results = path, names, results

    def measure(self, runs: Mapping[Key, Run], seeds: int) -> None:
        """Carry out what is missing, seed by seed, so that a part is a smaller study."""
        done = self._lines()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for seed in range(seeds):
            for key, run in runs.items():
                if (key, seed) in done:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    result = train(replace(run, seed=seed), Path(folder) / "run")
                line = dict(zip(self.names, key, strict=True)) | {"seed": seed}
                with self.path.open("a") as file:
                    file.write(json.dumps(line | {name: result[name] for name in self.results}) + "\n")

    def by_seed(self, key: Key, result: str) -> dict[int, float]:
        """One result of the runs with this key."""
        return {seed: line[result] for (found, seed), line in self._lines().items() if found == key}

    def _lines(self) -> dict[tuple[Key, int], dict[str, Any]]:
        lines = [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []
        return {(tuple(line[name] for name in self.names), line["seed"]): line for line in lines}


def options(about: str | None, seeds: int, out: Path) -> argparse.Namespace:
    """What the command line says; runs are carried out on one thread."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--out", type=Path, default=out)
    torch.set_num_threads(1)
    return parser.parse_args()
