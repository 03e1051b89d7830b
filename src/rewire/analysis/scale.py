"""What a method costs when a model is spread over ranks: bytes sent at a rewiring, bytes held by each rank.

Formulas, not measurements; the tests compare them with what small runs really send and hold. Bytes sent are counted as
in a ring.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rewire.core.layer import LayerSpec, Signal
from rewire.core.method import Method
from rewire.core.score import AnySignal, basic_signals
from rewire.distributed.group import Traffic, gathered, summed
from rewire.distributed.topk import DIGITS
from rewire.parts.allocate import GlobalTop, Proportional
from rewire.parts.drop import Lowest
from rewire.parts.grow import AtRandom


def transformer(blocks: int, width: int, hidden: int) -> list[LayerSpec]:
    """The Linear layers of a decoder: four square ones of attention and three of a gated feed-forward, per block.

    >>> sum(layer.numel for layer in transformer(blocks=32, width=4096, hidden=11008))
    6476005376
    """
    square, up, down = (width, width), (hidden, width), (width, hidden)
    shapes = {"q": square, "k": square, "v": square, "o": square, "gate": up, "up": up, "down": down}
    return [LayerSpec(f"{at}.{name}", torch.Size(shape)) for at in range(blocks) for name, shape in shapes.items()]


def rewiring_ddp(layers: int, ranks: int) -> Traffic:
    """What each rank sends at a rewiring under DDP: the step and a checksum for each layer, whatever the method.

    >>> rewiring_ddp(layers=10, ranks=2)
    Traffic(collectives=1, bytes=88.0)
    """
    return Traffic(1, gathered(layers + 1, ranks))


def rewiring_fsdp(method: Method, layers: int, ranks: int, dtype: torch.dtype = torch.float32) -> Traffic:
    """The most that each rank sends at a rewiring under FSDP2. It depends on layers and ranks, not on their sizes.

    A selection of the k largest sums 256 counts for every byte of a value, then gathers how many equal the k-th.

    >>> from rewire.methods import set_
    >>> rewiring_fsdp(set_(density=0.1, every=100, until=1000), layers=10, ranks=2)
    Traffic(collectives=20, bytes=82640.0)
    """

    def gather(numbers: int) -> Traffic:
        return Traffic(1, gathered(numbers, ranks))

    def selection(contests: int, lists: int, signal: AnySignal) -> Traffic:
        digits = 4 if Signal.MOMENTUM in basic_signals([signal]) else max(dtype.itemsize, 4)  # averages are float32
        return Traffic(digits, digits * summed(contests * DIGITS, ranks)) + gather(lists)

    each = gather(layers)
    sent = each * 4 + gather(3 * layers)  # finite? how many dropped, grown, held; and the record of it
    if isinstance(method.drop, Lowest):
        sent += selection(layers, layers, method.drop.score)
        sent += selection(1, layers, method.drop.score) * (method.drop.scope == "network")
    else:
        sent += each * 2 + selection(layers, layers, Signal.WEIGHT)  # selected only where a layer would be emptied
    if isinstance(method.allocate, GlobalTop):  # ranked before the step and after the drop
        sent += selection(1, layers, method.allocate.signal) * 2 + each
        sent += each * 4 * (method.allocate.scale == "layer")
    elif isinstance(method.allocate, Proportional) and method.allocate.to == "momentum":
        sent += each * 2
    sent += gather(1) * layers  # free positions, for a random draw
    if not isinstance(method.grow, AtRandom):
        (signal,) = method.grow.signals
        sent += (selection(1, 1, signal) + gather(1)) * layers
    return sent


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank's sparse layers."""

    weights: int
    gradients: int
    state: int  # of the optimizer
    masks: int
    averages: int  # of the dense gradient, for methods that read momentum
    rewiring: int  # for a moment: positions, scores and candidates
    start: int  # once, in sparsify, on the CPU: every rank draws the whole topology

    @property
    def steady(self) -> int:
        """While training."""
        return self.weights + self.gradients + self.state + self.masks + self.averages


def memory_fsdp(
    method: Method,
    specs: Sequence[LayerSpec],
    ranks: int,
    dtype: torch.dtype = torch.float32,
    states: int = 2,
    fraction: float = 0.1,
) -> Memory:
    """What the sparse layers take on the rank that holds most, which is the first.

    ``states``: tensors of the weight's shape that the optimizer keeps, 2 for Adam, 1 for SGD with momentum.
    ``fraction``: the share of the weights that moves at a rewiring.

    >>> from rewire.methods import rigl
    >>> layer = LayerSpec("a", torch.Size([100, 100]))
    >>> memory_fsdp(rigl(density=0.1, every=100, until=1000), [layer], ranks=4).steady
    42500
    """
    held = [-(-spec.shape[0] // ranks) * spec.shape[1:].numel() for spec in specs]
    density, wide = method.density(0), dtype.itemsize
    taken = len(method.signals & {Signal.GRAD, Signal.SIGN})  # before the step, of the weights that exist
    all_layers, one_layer = (density * number for number in (sum(held), max(held)))
    return Memory(
        weights=sum(held) * wide,
        gradients=sum(held) * wide,
        state=sum(held) * wide * states,
        masks=sum(held),
        averages=4 * sum(held) if Signal.MOMENTUM in method.signals else 0,
        # Of all layers the positions before and after the drop, and what was taken before the step; of one layer at a
        # time what growing takes, and what the allocator is slow to give back; candidates with their keys.
        rewiring=round(all_layers * (16 + wide * taken) + one_layer * 56 + 64 * fraction * all_layers),
        start=8 * round(density * sum(spec.numel for spec in specs)),
    )
