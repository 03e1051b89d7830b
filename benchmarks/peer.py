"""The packed store against the peer ``sparseprop`` 0.1.14: training steps of ResNet-18 (CIFAR), ERK, on one thread.

The peer keeps a topology for good, so ours is static here as well: the same start, the same batch, in turns with dense
PyTorch in both memory formats. The peer chooses for each of its layers what it measured to be faster, as it advises.
``python -m benchmarks.peer`` runs this alone.
"""

import contextlib
import ctypes
import importlib
import importlib.util
import io

import torch
from torch import nn

import rewire
from benchmarks.measure import Work, interleaved
from benchmarks.packed import BATCH, Row, network, training

SPARSITIES = (0.97, 0.99)
ABSENT = "the peer sparseprop is not installed, so the packed store is not compared with it: make bench installs it"


def scattered(sparsity: float) -> nn.Module:
    """ResNet-18 as a plain model with zeros: what every contender begins with."""
    torch.manual_seed(0)
    model = network("resnet-18")[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rewire.sparsify(model, optimizer, rewire.static(density=1 - sparsity)).remove()
    return model


def replaced(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """The model with the peer's layers, on one thread: its OpenMP is not torch's, so it has to be told apart."""
    ctypes.CDLL(importlib.import_module("backend").__file__).omp_set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):  # it reports on every layer
        swapped: nn.Module = importlib.import_module("sparseprop.utils").swap_modules_with_sparse(model, shape)
    return swapped


def works(sparsity: float) -> tuple[dict[str, Work], str]:
    """One training step of each contender, and how much of the network the peer made its own."""
    _, shape, classes = network("resnet-18")
    x, y = torch.randn(BATCH, *shape), torch.randint(classes, (BATCH,))
    inner = x.contiguous(memory_format=torch.channels_last)
    last = network("resnet-18")[0].to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    peer, ours = replaced(scattered(sparsity), x.shape), network("resnet-18")[0]
    method = rewire.static(density=1 - sparsity)
    kinds = [type(module).__name__ for module in peer.modules()]
    taken = sum(kind in ("SparseConv2d", "SparseLinear") for kind in kinds)
    every = taken + sum(kind in ("Conv2d", "Linear") for kind in kinds)
    return {
        "dense": training(network("resnet-18")[0], x, y, lambda _: None),
        "channels_last": training(last, inner, y, lambda _: None),
        "sparseprop": training(peer, x, y, lambda _: None),
        "packed": training(ours, x, y, lambda optimizer: rewire.sparsify(ours, optimizer, method, store="packed")),
    }, f"{taken} of {every} layers"


def rows(rounds: int = 3) -> list[Row]:
    if importlib.util.find_spec("sparseprop") is None:
        print(ABSENT)
        return []
    threads, found = torch.get_num_threads(), list[Row]()
    torch.set_num_threads(1)
    for sparsity in SPARSITIES:
        contenders, taken = works(sparsity)
        median = interleaved(contenders, rounds)
        best = min(median["dense"], median["channels_last"])
        times = {kind: 1000 * value for kind, value in median.items()}
        for kind in ("sparseprop", "packed"):
            what = f"train resnet-18 erk {sparsity:.0%}, static, batch {BATCH}, 1 thread: {kind}"
            about = {"what": what, "ratio": best / median[kind], "target": "reported", "met": None}
            found.append(about | {"milliseconds": times} | ({"taken": taken} if kind == "sparseprop" else {}))
    torch.set_num_threads(threads)
    return found


if __name__ == "__main__":
    for one in rows():
        print(f"{one['what']:65} {one['ratio']:6.2f}  {one.get('taken', '')}  {one['milliseconds']}", flush=True)
