"""The packed store against the peer ``sparseprop`` 0.1.14: training steps of ResNet-18 (CIFAR), ERK, on one thread.

The peer cannot change a topology, so ours is static here as well. All use the same start and the same batch and are
timed in turns with dense PyTorch in both memory formats. The peer chooses dense or sparse for each layer by measuring
both, as its documentation advises.
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
    """ResNet-18 as a plain model with zeros, which every contender starts from."""
    torch.manual_seed(0)
    model = network("resnet-18")[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rewire.sparsify(model, optimizer, rewire.static(density=1 - sparsity)).remove()
    return model


def replaced(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """The model with the peer's layers, on one thread: it has an OpenMP runtime of its own besides torch's."""
    ctypes.CDLL(importlib.import_module("backend").__file__).omp_set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):  # it reports on every layer
        swapped: nn.Module = importlib.import_module("sparseprop.utils").swap_modules_with_sparse(model, shape)
    return swapped


def works(sparsity: float) -> tuple[dict[str, Work], str]:
    """One training step of each contender, and how many layers the peer made sparse."""
    _, shape, classes = network("resnet-18")
    x, y = torch.randn(BATCH, *shape), torch.randint(classes, (BATCH,))
    images = x.contiguous(memory_format=torch.channels_last)
    channels_last = network("resnet-18")[0].to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    peer, ours = replaced(scattered(sparsity), x.shape), network("resnet-18")[0]
    method = rewire.static(density=1 - sparsity)
    kinds = [type(module).__name__ for module in peer.modules()]
    sparse = sum(kind in ("SparseConv2d", "SparseLinear") for kind in kinds)
    total = sparse + sum(kind in ("Conv2d", "Linear") for kind in kinds)
    return {
        "dense": training(network("resnet-18")[0], x, y, lambda _: None),
        "channels_last": training(channels_last, images, y, lambda _: None),
        "sparseprop": training(peer, x, y, lambda _: None),
        "packed": training(ours, x, y, lambda optimizer: rewire.sparsify(ours, optimizer, method, store="packed")),
    }, f"{sparse} of {total} layers"


def rows(rounds: int = 3) -> list[Row]:
    if importlib.util.find_spec("sparseprop") is None:
        print(ABSENT)
        return []
    threads, results = torch.get_num_threads(), list[Row]()
    torch.set_num_threads(1)
    for sparsity in SPARSITIES:
        contenders, taken = works(sparsity)
        median = interleaved(contenders, rounds)
        best = min(median["dense"], median["channels_last"])
        times = {kind: 1000 * value for kind, value in median.items()}
        for kind in ("sparseprop", "packed"):
            what = f"train resnet-18 erk {sparsity:.0%}, static, batch {BATCH}, 1 thread: {kind}"
            about = {"what": what, "ratio": best / median[kind], "target": "reported", "met": None}
            results.append(about | {"milliseconds": times} | ({"taken": taken} if kind == "sparseprop" else {}))
    torch.set_num_threads(threads)
    return results


if __name__ == "__main__":
    for row in rows():
        print(f"{row['what']:65} {row['ratio']:6.2f}  {row.get('taken', '')}  {row['milliseconds']}", flush=True)
