"""``rewire bench`` and ``rewire pack``: how long a finished run takes to answer, dense, shrunk and packed."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import torch
from rich.table import Table
from torch import Tensor, nn

from rewire.inference.pack import pack as pack_model
from rewire.io.compare import compare_outputs
from rewire.lab.cli import arguments as cli
from rewire.lab.cli.terminal import console
from rewire.lab.training.network import Trained, read_network
from rewire.nn.packed import Packed
from rewire.shrinking.shrink import shrink
from rewire.stores.convert import to_dense

WARM_UP = 3  # calls before the clock starts
NOISE = 2.0  # a median above this many times the fastest call is not the network's
NOISY = (
    "These times are not to be relied on: half of the calls took more than twice as long as the fastest one. Other "
    "programs use the processor: stop them, or measure with fewer threads (--threads 1)."
)


def bench(command: "cli.Bench", words: str) -> None:
    """A table of latencies: a row per batch size, a column per form of the network."""
    if not command.batches or min(command.batches) < 1:
        raise ValueError("--batches must be numbers of at least 1, as in --batches 1 16 64")
    trained = read_network(command.network)
    with _threads(command.threads) as threads:
        forms = networks(trained)
        table = Table(box=None, pad_edge=False)
        for name in ("batch", *forms, "dense / packed"):
            table.add_column(name, justify="right", no_wrap=True)
        noisy = False
        for batch in command.batches:
            x = torch.randn(batch, *trained.image, generator=torch.Generator().manual_seed(0))
            measured = {name: call_times(model, x, command.seconds) for name, model in forms.items()}
            times = {name: median(durations) for name, durations in measured.items()}
            noisy |= any(is_noisy(durations) for durations in measured.values())
            ratio = times["dense"] / times["packed"]
            table.add_row(str(batch), *(f"{1e3 * latency:.3f} ms" for latency in times.values()), f"{ratio:.2f}x")
        console.print(f"{trained.run.label}, {threads} threads, median latency", highlight=False)
        console.print(table)
        if noisy:
            console.print(NOISY, highlight=False)


def pack(command: "cli.Pack", words: str) -> None:
    """Pack, compare, and measure one sample and a batch."""
    trained = read_network(command.network)
    dense, packed = to_dense(trained.model).eval(), pack_model(trained.model, trained.example)
    with torch.no_grad():
        compare_outputs(dense(trained.example), packed(trained.example), 1e-4, "the packed network")
    layers = [module for module in packed.modules() if isinstance(module, Packed)]
    weights = sum(len(module.weight_values) for module in layers)
    console.print(f"{trained.run.label}: {len(layers)} layers packed, {weights:,} weights", highlight=False)
    console.print("the packed network computes the same within rounding", highlight=False)
    bench(cli.Bench(network=command.network), words)


def networks(trained: Trained) -> dict[str, nn.Module]:
    """The forms of a network that are compared."""
    return {
        "dense": to_dense(trained.model).eval(),
        "shrunk": to_dense(shrink(trained.model, trained.example)).eval(),
        "packed": pack_model(trained.model, trained.example),
    }


@torch.no_grad()
def call_times(model: Callable[[Tensor], Tensor], x: Tensor, seconds: float) -> list[float]:
    """How long each call took, in seconds."""
    for _ in range(WARM_UP):
        model(x)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        began = time.perf_counter()
        model(x)
        times.append(time.perf_counter() - began)
    return times


def is_noisy(times: Sequence[float]) -> bool:
    """Whether half of the calls took more than twice as long as the fastest: something else had the processor."""
    return median(times) > NOISE * min(times)


@contextmanager
def _threads(count: int | None) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or os.cpu_count() or 1)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
