"""Where the time of a training step or of an inference goes, kernel by kernel: ``python -m benchmarks.kernel_times``.

Takes the options of ``benchmarks.packed``. What is left over is torch's own operations and Python.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.measure import Work, interleaved
from benchmarks.packed import BATCH, infer_cells, network, packed_inference, packed_training, parse, train_cells
from rewire.inference import graph as packed_graph
from rewire.kernels.batch import norm, ops, pooling
from rewire.kernels.library import native


class Stopwatch:
    """A native library that adds up the time spent in each of its functions."""

    def __init__(self, library: object) -> None:
        self.library = library
        self.seconds: dict[str, float] = {}

    def __getattr__(self, name: str) -> Callable[..., object]:
        function = getattr(self.library, name)

        def timed(*args: object) -> object:
            began = time.perf_counter()
            result = function(*args)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
            return result

        return timed


def train_step(name: str, start: str, sparsity: float) -> Work:
    _, shape, classes = network(name)
    return packed_training(name, start, sparsity, torch.randn(BATCH, *shape), torch.randint(classes, (BATCH,)))[0]


def inference(name: str, batch: int, sparsity: float) -> Work:
    return packed_inference(name, sparsity, torch.randn(batch, *network(name)[1]))


def chosen(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[float], Work]]]:
    for name, start in train_cells(options):
        yield f"train {name} {start}", partial(train_step, name, start)
    for name, batch in infer_cells(options):
        yield f"infer {name}, batch {batch}", partial(inference, name, batch)


def main() -> None:
    options, watch = parse(program="kernel_times"), Stopwatch(native())
    for module in (ops, norm, pooling, packed_graph):
        module.native = lambda: watch  # type: ignore[attr-defined]
    for (what, make), threads, sparsity in itertools.product(chosen(options), options.threads, options.sparsities):
        torch.set_num_threads(threads)
        work = make(sparsity)
        for _ in range(3):
            work()
        watch.seconds = {}
        total = interleaved({"work": work}, options.rounds)["work"]
        print(f"{what} {sparsity:.0%}, {threads} threads: {1000 * total:.2f} ms")
        parts = {kernel: seconds / (options.rounds + 1) for kernel, seconds in watch.seconds.items()}
        parts["torch and Python"] = total - sum(parts.values())
        for kernel, seconds in sorted(parts.items(), key=lambda part: -part[1]):
            print(f"    {kernel:26} {1000 * seconds:8.2f} ms   {seconds / total:4.0%}", flush=True)


if __name__ == "__main__":
    main()
