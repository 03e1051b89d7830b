"""The cost of a method when a model is spread over ranks: bytes sent at a rewiring, and memory of each rank.

Formulas, not measurements; tests compare them with what small runs send and hold. Bytes are counted as for ring
collectives. What a part of a method sends is declared by the part itself (``rewire.parts.collectives``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rewire.analysis.whole_layers import structure_collectives, structure_memory
from rewire.core.layer import LayerSpec, Signal
from rewire.core.method import Method
from rewire.core.score import basic_signals
from rewire.distributed.averaging import divide
from rewire.distributed.group import Traffic, gathered, summed
from rewire.distributed.topk import DIGITS
from rewire.parts.collectives import Collectives, Gather, Select
from rewire.stores.inactive_gradient import TILE


def transformer(blocks: int, width: int, hidden: int) -> list[LayerSpec]:
    """The Linear layers of a transformer decoder: per block, four of attention and three of a gated feed-forward.

    >>> sum(layer.numel for layer in transformer(blocks=32, width=4096, hidden=11008))
    6476005376
    """
    square, up, down = (width, width), (hidden, width), (width, hidden)
    shapes = {"q": square, "k": square, "v": square, "o": square, "gate": up, "up": up, "down": down}
    return [
        LayerSpec(f"{block}.{name}", torch.Size(shape)) for block in range(blocks) for name, shape in shapes.items()
    ]


def rewiring_ddp(layers: int, ranks: int) -> Traffic:
    """What each rank sends at a rewiring under DDP: the step and a checksum for each layer, for every method.

    >>> rewiring_ddp(layers=10, ranks=2)
    Traffic(collectives=1, bytes=88.0)
    """
    return Traffic(1, gathered(layers + 1, ranks))


def step_packed(nnz: Sequence[int], ranks: int, dtype: torch.dtype = torch.float32) -> Traffic:
    """What each rank sends at an ordinary step of a packed model: the gradients of the weights that exist.

    ``nnz``: of each layer. Biases and normalisation layers are left to DDP and not counted.

    >>> step_packed([300, 700], ranks=2)
    Traffic(collectives=1, bytes=4008.0)
    """
    buckets = divide([torch.empty(size, dtype=dtype, device="meta") for size in reversed(nnz)])
    return Traffic(len(buckets), summed(sum(nnz) + len(nnz), ranks, dtype.itemsize))


def rewiring_packed(shapes: Sequence[Sequence[int]], ranks: int, dtype: torch.dtype = torch.float32) -> Traffic:
    """What each rank sends at a rewiring of a packed model that ranks all gradients: their sums over the ranks.

    ``shapes``: of the dense weights, without groups. Methods that read no inactive gradient send as much as a masked
    model, ``rewiring_ddp``; with a sample only the sampled gradients are summed.

    >>> rewiring_packed([(300, 784), (10, 300)], ranks=2)
    Traffic(collectives=5, bytes=952840.0)
    """
    sent = rewiring_ddp(len(shapes), ranks)
    for rows, *rest in shapes:
        row = math.prod(rest)
        tiles = -(-rows // max(TILE // row, 1))
        sent += Traffic(tiles, summed(rows * row, ranks, dtype.itemsize)) + Traffic(1, gathered(1, ranks))
    return sent


def rewiring_fsdp(
    method: Method,
    layers: int | Sequence[LayerSpec],
    ranks: int,
    dtype: torch.dtype = torch.float32,
    fraction: float = 0.1,
) -> Traffic:
    """The most that each rank sends at a rewiring under FSDP2: a function of the number of layers, not of their sizes.

    Except for layers that one rank rewires as a whole, all of CHTs and those whose shards cut a tile of a constraint:
    their weights and signals travel, and ``layers`` has to be a list of all layers. Such layers are counted with the
    density of the network in every shard; ``fraction`` of their weights moves.

    >>> from rewire.methods import set_
    >>> rewiring_fsdp(set_(density=0.1, every=100, until=1000), layers=10, ranks=2)
    Traffic(collectives=20, bytes=82640.0)
    """
    specs = None if isinstance(layers, int) else layers
    layers = layers if isinstance(layers, int) else len(layers)
    # Are all gradients finite? How many weights were dropped, are grown, are active? And the record for the history.
    calls: Collectives = [Gather(layers, times=4), Gather(3 * layers)]
    for part in (method.drop, method.allocate, method.grow):
        calls += _declared_collectives(part, layers)
    calls += structure_collectives(method, layers, specs, ranks, fraction)
    sent = Traffic()
    for call in calls:
        traffic = (
            _gather(call, ranks) if isinstance(call, Gather) else _select(call, ranks, _itemsize(call, method, dtype))
        )
        sent += traffic * call.times
    return sent


def _declared_collectives(part: object, layers: int) -> Collectives:
    declared = getattr(part, "collectives", None)
    if declared is None:
        raise ValueError(
            f"{part!r} does not declare what it sends to other ranks: give it a method collectives(layers) that "
            "returns a list of rewire.parts.Gather and rewire.parts.Select, which is empty if it does not use ctx.ranks"
        )
    calls: Collectives = declared(layers)
    return calls


def _gather(call: Gather, ranks: int) -> Traffic:
    return Traffic(1, gathered(call.numbers, ranks))


def _itemsize(call: Select, method: Method, dtype: torch.dtype) -> int:
    """The bytes of the values that are ranked."""
    if call.itemsize is not None:
        return call.itemsize
    if method.constraint is not None and method.constraint.whole:
        return 8  # means over tiles
    return 4 if Signal.MOMENTUM in basic_signals([call.signal]) else max(dtype.itemsize, 4)  # averages are float32


def _select(call: Select, ranks: int, digits: int) -> Traffic:
    """For every byte of a value the ranks sum 256 counts; then they gather how many values equal the k-th largest."""
    return Traffic(digits, digits * summed(call.contests * DIGITS, ranks)) + _gather(Gather(call.lists), ranks)


@dataclass(frozen=True)
class Memory:
    """Bytes that the sparse layers take on one rank."""

    weights: int
    gradients: int
    state: int  # of the optimizer
    masks: int
    averages: int  # of the dense gradient, for methods that read momentum
    rewiring: int  # only during a rewiring: positions, scores and candidates
    start: int  # only in sparsify, on the CPU: every rank draws the topology of the whole layers

    @property
    def steady(self) -> int:
        """Bytes between rewirings."""
        return self.weights + self.gradients + self.state + self.masks + self.averages


def memory_fsdp(
    method: Method,
    specs: Sequence[LayerSpec],
    ranks: int,
    dtype: torch.dtype = torch.float32,
    states: int = 2,
    fraction: float = 0.1,
) -> Memory:
    """The memory of the first rank, whose shards are the largest.

    ``states``: how many tensors of the weight's shape the optimizer keeps, 2 for Adam, 1 for SGD with momentum.
    ``fraction``: the share of the weights that moves at a rewiring. What a growth computes besides, as that of CHTs
    from the links between neurons, is not counted.

    >>> from rewire.methods import rigl
    >>> layer = LayerSpec("a", torch.Size([100, 100]))
    >>> memory_fsdp(rigl(density=0.1, every=100, until=1000), [layer], ranks=4).steady
    42500
    """
    shards = [-(-spec.shape[0] // ranks) * spec.shape[1:].numel() for spec in specs]
    density, width = method.density(0), dtype.itemsize
    captured = len(method.signals & {Signal.GRAD, Signal.SIGN})  # signals of the active weights, before the step
    all_layers, largest_layer = density * sum(shards), density * max(shards)
    return Memory(
        weights=sum(shards) * width,
        gradients=sum(shards) * width,
        state=sum(shards) * width * states,
        masks=sum(shards),
        averages=4 * sum(shards) if Signal.MOMENTUM in method.signals else 0,
        # All layers: positions before and after the drop, and the captured signals. The largest layer: what growing
        # takes, and what the allocator has not returned yet. Candidates: values, positions and sorting keys.
        rewiring=round(all_layers * (16 + width * captured) + largest_layer * 56 + 64 * fraction * all_layers)
        + structure_memory(method, specs, ranks, width),
        start=8 * round(density * sum(spec.numel for spec in specs)),
    )
