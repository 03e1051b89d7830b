"""Training with the packed store and inference with ``pack``, against the best dense PyTorch and ONNX Runtime.

Networks are ordinary torch modules. Dense PyTorch runs in both memory formats and the faster one counts. Everything is
timed in turns. A training figure is the time of an ordinary step plus 1/``EVERY`` of the cost of a rewiring. That cost
is measured on two steps, one that rewires and one that builds the new tables, minus two ordinary steps. The method is
RigL, which keeps the layer densities of the start; with GGR they would differ from one measurement to the next.
``python -m benchmarks.packed`` runs this alone (``--help``: single cells); ``benchmarks.kernel_times`` has profiles.
"""

import argparse
import importlib.util
import io
import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rewire
from benchmarks.measure import Work, interleaved
from rewire.kernels.plan_cache import plan_bytes
from rewire.lab import models
from rewire.rewirer.rewirer import Rewirer
from rewire.stores.packed_layer import PackedLayer

Row = dict[str, object]
SPARSITIES = (0.90, 0.97, 0.99)
BATCH = 128
# Small networks: the name in the lab and the width. On CIFAR, where most of a step is not a convolution.
SMALL: dict[str, tuple[str, float]] = {
    "resnet-18-quarter": ("resnet-18", 0.25),
    "vgg16-quarter": ("vgg16", 0.25),
    "mobilenet-v2-half": ("mobilenet-v2", 0.5),
}
NETWORKS = ("mlp", "vgg16", "resnet-18", "mobilenet-v2", *SMALL)
PAUSE = 0.03  # seconds of pause before a short measurement
EVERY = 391  # steps between rewirings, one epoch of CIFAR at batch 128
# Target speed-ups at the three sparsities: of training by network and start, of inference by network and batch size.
# None: there is no target, the figure is reported.
Targets = tuple[float | None, float | None, float | None]
TRAIN: dict[tuple[str, str], Targets] = {
    ("mlp", "erk"): (5, 12, 26),
    ("vgg16", "uniform"): (4.2, 8.6, 13),
    ("vgg16", "erk"): (2.3, 5.2, 10),
    ("resnet-18", "uniform"): (4.1, 7.8, 11),
    ("resnet-18", "erk"): (2.5, 5.0, 9),
    ("mobilenet-v2", "erk"): (1.5, 2.2, 2.5),
    ("resnet-18-quarter", "erk"): (None, 4.5, None),
    ("vgg16-quarter", "erk"): (None, 4.5, None),
    ("mobilenet-v2-half", "erk"): (None, 5, None),
}
SMALL_BATCHES = (2, 4, 8, 15)
INFER: dict[tuple[str, int], Targets] = {
    ("mlp", 64): (4, 10, 20),
    ("vgg16", 64): (1.5, 4, 8),
    ("resnet-18", 64): (1.7, 4.5, 9),
    ("mlp", 1): (4.5, 10, 18),
    ("vgg16", 1): (1.6, 4.5, 10),
    ("resnet-18", 1): (1.1, 2.8, 5),
}
INFER |= {(name, batch): INFER[name, 1] for name in ("mlp", "vgg16", "resnet-18") for batch in SMALL_BATCHES}
MEMORY = (4.5, 15, 38)  # target ratios of dense to packed bytes


def network(name: str) -> tuple[nn.Module, tuple[int, ...], int]:
    """The model, the shape of one input and the number of classes."""
    if name == "mlp":
        sizes = (784, 4096, 4096, 10)
        layers = [[nn.Linear(a, b), nn.ReLU()] for a, b in itertools.pairwise(sizes)]
        return nn.Sequential(*[m for pair in layers for m in pair][:-1]), (784,), 10
    image, classes = ((3, 64, 64), 200) if name == "vgg16" else ((3, 32, 32), 100 if name in SMALL else 10)
    kind, width = SMALL.get(name, (name, 1.0))
    return models.build(kind, classes=classes, image=image, width=width), image, classes


def training(model: nn.Module, x: Tensor, y: Tensor, prepare: Callable[[torch.optim.Optimizer], object]) -> Work:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    prepare(optimizer)

    def step() -> None:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def packed_training(name: str, start: str, sparsity: float, x: Tensor, y: Tensor) -> tuple[Work, Rewirer]:
    """One training step of a packed model, and its rewirer."""
    model, rewirers = network(name)[0], []
    method = rewire.rigl(density=1 - sparsity, every=EVERY, until=10**9, start=start)
    step = training(model, x, y, lambda o: rewirers.append(rewire.sparsify(model, o, method, store="packed")))
    return step, rewirers[0]


def trained(name: str, start: str, options: argparse.Namespace) -> list[Row]:
    """Dense in both formats and packed at every sparsity, one training step at a time, in turns."""
    _, shape, classes = network(name)
    x, y = torch.randn(BATCH, *shape), torch.randint(classes, (BATCH,))
    works: dict[str, Work] = {"dense": training(network(name)[0], x, y, lambda _: None)}
    if len(shape) == 3:
        model = network(name)[0].to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = x.contiguous(memory_format=torch.channels_last)
        works["channels_last"] = training(model, images, y, lambda _: None)
    rewirers: dict[float, Rewirer] = {}
    rewirings: dict[str, Work] = {}
    for sparsity in options.sparsities:
        step, rewirers[sparsity] = packed_training(name, start, sparsity, x, y)
        works[f"{sparsity:.0%}"] = step
        rewirings[f"{sparsity:.0%} rewiring"] = rewiring(step, rewirers[sparsity])
    results: list[Row] = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        median = interleaved(works, rounds_of(name, options), pause=PAUSE if len(shape) == 1 else 0.0)
        best = min(value for kind, value in median.items() if "%" not in kind)
        median |= interleaved(rewirings, 1)  # one round is enough: only 1/EVERY of it counts
        for sparsity in options.sparsities:
            target = TRAIN[name, start][SPARSITIES.index(sparsity)]
            what = f"train {name} {start} {sparsity:.0%}, batch {BATCH}, {threads} threads"
            ordinary, with_rewiring = median[f"{sparsity:.0%}"], median[f"{sparsity:.0%} rewiring"]
            results.append(row(what, best / (ordinary + (with_rewiring - 2 * ordinary) / EVERY), target, median))
    for sparsity in options.sparsities:
        target = None if name in SMALL else MEMORY[SPARSITIES.index(sparsity)]
        what = f"memory {name} {start} {sparsity:.0%}: dense over packed bytes"
        results.append(row(what, memory_ratio(rewirers[sparsity]), target, {}))
    return results


def rounds_of(name: str, options: argparse.Namespace, batch: int = BATCH) -> int:
    """How often each work is timed: more often where one round is short."""
    rounds: int = options.rounds
    return 5 * rounds if name == "mlp" or batch in (1, *SMALL_BATCHES) else rounds


def rewiring(step: Work, rewirer: Rewirer) -> Work:
    """Two steps: one with a rewiring, as if that of step ``EVERY`` had been postponed; one that builds new tables."""

    def work() -> None:
        rewirer.due = EVERY
        rewirer._look_ahead()
        count = len(rewirer.history)
        step()
        step()
        assert len(rewirer.history) == count + 1

    return work


def memory_ratio(rewirer: Rewirer) -> float:
    """Bytes of weights, gradients and momentum: dense over packed, which includes all indices."""
    packed = dense = 0
    for layer in rewirer.layers:
        assert isinstance(layer, PackedLayer)
        positions = layer.module.weight_positions
        packed += layer.nnz * (3 * 4 + positions.element_size()) + plan_bytes(positions)
        dense += layer.shape.numel() * 3 * 4
    return dense / packed


def inferred(name: str, batch: int, options: argparse.Namespace) -> list[Row]:
    """ONNX Runtime on the dense model against ``pack`` on sparse ones (ERK)."""
    model, shape, _classes = network(name)
    x = torch.randn(batch, *shape)
    results: list[Row] = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        works: dict[str, Work] = {"onnxruntime": onnx_session(model.eval(), x, threads)}
        for sparsity in options.sparsities:
            works[f"{sparsity:.0%}"] = packed_inference(name, sparsity, x)
        median = interleaved(works, rounds_of(name, options, batch), pause=PAUSE)
        for sparsity in options.sparsities:
            target = INFER[name, batch][SPARSITIES.index(sparsity)]
            what = f"infer {name} erk {sparsity:.0%}, batch {batch}, {threads} threads, against ONNX Runtime"
            results.append(row(what, median["onnxruntime"] / median[f"{sparsity:.0%}"], target, median))
    return results


def packed_inference(name: str, sparsity: float, x: Tensor) -> Work:
    fast = rewire.pack(scattered(name, sparsity), x, measure=True)

    def run() -> None:
        with torch.inference_mode():
            fast(x)

    return run


def scattered(name: str, sparsity: float) -> nn.Module:
    model = network(name)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rewire.sparsify(model, optimizer, rewire.static(density=1 - sparsity))
    return model


def onnx_session(model: nn.Module, x: Tensor, threads: int) -> Work:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    file = io.BytesIO()
    program = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
    assert program is not None
    program.save(file)  # type: ignore[arg-type]
    session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    inputs = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, inputs)


def row(what: str, ratio: float, target: float | None, median: dict[str, float]) -> Row:
    times = {kind: 1000 * value for kind, value in median.items()}
    aim = "reported" if target is None else f"at least {target}"
    met = None if target is None else ratio >= target
    return {"what": what, "ratio": ratio, "target": aim, "met": met, "milliseconds": times}


def each(options: argparse.Namespace) -> Iterator[Row]:
    """The rows of all cells, each as soon as it is measured."""
    threads = torch.get_num_threads()
    for name, start in train_cells(options):
        yield from trained(name, start, options)
    for name, batch in infer_cells(options) if importlib.util.find_spec("onnxruntime") is not None else ():
        yield from inferred(name, batch, options)
    torch.set_num_threads(threads)


def train_cells(options: argparse.Namespace) -> list[tuple[str, str]]:
    """The networks and starts that were asked for."""
    asked = [(name, start) for name, start in TRAIN if name in options.networks and start in options.starts]
    return asked if "train" in options.kinds else []


def infer_cells(options: argparse.Namespace) -> list[tuple[str, int]]:
    """The networks and batches that were asked for."""
    return [(name, batch) for name, batch in INFER if name in options.networks and f"infer-{batch}" in options.kinds]


def parse(words: Sequence[str] | None = None, program: str = "packed") -> argparse.Namespace:
    """Which cells to measure: all of them unless told otherwise."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--starts", nargs="+", choices=("erk", "uniform"), default=("erk", "uniform"))
    kinds = ("train", "infer-64", "infer-1", *(f"infer-{batch}" for batch in SMALL_BATCHES))
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--sparsities", nargs="+", type=float, choices=SPARSITIES, default=SPARSITIES)
    parser.add_argument("--threads", nargs="+", type=int, default=(2, 1))
    parser.add_argument("--rounds", type=int, default=3, help="five times as many where a round is short")
    return parser.parse_args(words)


def rows() -> Iterator[Row]:
    return each(parse([]))


def main() -> None:
    for result in each(parse()):
        times = " ".join(f"{kind} {value:.1f}" for kind, value in result["milliseconds"].items())  # type: ignore[attr-defined]
        print(f"{result['what']:75} {result['ratio']:8.2f}   {result['target']}   {times}", flush=True)


if __name__ == "__main__":
    main()
