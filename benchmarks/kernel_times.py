"""The time of a training step or of an inference, kernel by kernel: ``python -m benchmarks.kernel_times``.

Takes the options of ``benchmarks.packed``. "torch and Python" is all that is no native kernel.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.measure import Work, interleaved
from benchmarks.packed import BATCH, infer_cells, network, packed_inference, packed_training, parse, train_cells
from rewire.kernels import library


class Stopwatch:
    """Wraps a native library and adds up the time spent in each of its functions."""

    def __init__(self, wrapped: object) -> None:
        self.wrapped = wrapped
        self.seconds: dict[str, float] = {}

    def __getattr__(self, name: str) -> Callable[..., object]:
        function = getattr(self.wrapped, name)

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


def cells(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[float], Work]]]:
    for name, start in train_cells(options):
        yield f"train {name} {start}", partial(train_step, name, start)
    for name, batch in infer_cells(options):
        yield f"infer {name}, batch {batch}", partial(inference, name, batch)


def main() -> None:
    options, stopwatch = parse(program="kernel_times"), Stopwatch(library.native())
    with library.use(stopwatch):
        profile(options, stopwatch)


def profile(options: argparse.Namespace, stopwatch: Stopwatch) -> None:
    for (what, make), threads, sparsity in itertools.product(cells(options), options.threads, options.sparsities):
        torch.set_num_threads(threads)
        work = make(sparsity)
        for _ in range(3):
            work()
        stopwatch.seconds = {}
        total = interleaved({"work": work}, options.rounds)["work"]
        print(f"{what} {sparsity:.0%}, {threads} threads: {1000 * total:.2f} ms")
        parts = {kernel: seconds / (options.rounds + 1) for kernel, seconds in stopwatch.seconds.items()}
        parts["torch and Python"] = total - sum(parts.values())
        for kernel, seconds in sorted(parts.items(), key=lambda part: -part[1]):
            print(f"    {kernel:34} {1000 * seconds:8.2f} ms   {seconds / total:4.0%}", flush=True)


if __name__ == "__main__":
    main()
