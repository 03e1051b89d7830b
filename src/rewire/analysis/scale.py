"""What a method costs when a model is spread over ranks: bytes sent at a rewiring, bytes held by each rank.

Formulas, not measurements; the tests compare them with what small runs really send and hold. Bytes sent are those of a
ring, as in ``rewire.distributed.group.Traffic``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rewire.distributed.group import gathered, summed
from rewire.distributed.shards import DIGITS
from rewire.layer import LayerSpec, Signal
from rewire.method import Method
from rewire.parts.allocate import GlobalTop, Proportional
from rewire.parts.drop import Lowest
from rewire.parts.grow import AtRandom


def bytes_ddp(layers: int, ranks: int) -> float:
    """What each rank sends at a rewiring under DDP: the step and a checksum for each layer, whatever the method."""
    return gathered(layers + 1, ranks)


def bytes_fsdp(method: Method, layers: int, ranks: int, dtype: torch.dtype = torch.float32) -> float:
    """The most that each rank sends at a rewiring under FSDP2. It depends on layers and ranks, not on their sizes.

    A selection of the k largest sums 256 counts for every byte of a value, then gathers how many equal the k-th.

    >>> from rewire.methods import set_
    >>> bytes_fsdp(set_(density=0.1, every=100, until=1000), layers=10, ranks=2)
    83120.0
    """

    def selection(contests: int, lists: int, kind: torch.dtype) -> float:
        counted = summed(contests * DIGITS, ranks) * max(kind.itemsize, 4)
        return counted + gathered(lists, ranks)

    def each(numbers: int = 1) -> float:
        return gathered(numbers * layers, ranks)

    always = each() + each() + each() + each(3) + each()  # finite? dropped; grown before; what was done; counted anew
    if isinstance(method.drop, Lowest):
        kind = torch.float32 if method.drop.score is Signal.MOMENTUM else dtype
        drop = selection(layers, layers, kind)
        drop += selection(1, layers, kind) if method.drop.scope == "network" else 0
    else:
        drop = 2 * each() + selection(layers, layers, dtype)  # the selection only where a layer would be emptied
    allocate = 0.0
    if isinstance(method.allocate, GlobalTop):
        allocate = 2 * selection(1, layers, dtype) + each() + (4 * each() if method.allocate.scale == "layer" else 0)
    elif isinstance(method.allocate, Proportional) and method.allocate.to == "momentum":
        allocate = 2 * each()
    grow = each()  # free positions, for a random draw
    if not isinstance(method.grow, AtRandom):
        kind = torch.float32 if Signal.MOMENTUM in method.grow.signals else dtype
        grow += layers * selection(1, 1, kind) + each()
    return always + drop + allocate + grow


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank's sparse layers."""

    weights: int
    gradients: int
    state: int  # of the optimizer
    masks: int
    averages: int  # of the dense gradient, for methods that read momentum
    rewiring: int  # for a moment: positions, scores and candidates
    start: int  # once, in sparsify: every rank draws the whole topology

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
) -> Memory:
    """What the sparse layers take on the rank that holds most, which is the first. ``states``: 2 for Adam, 1 for SGD.

    >>> from rewire.methods import rigl
    >>> layer = LayerSpec("a", torch.Size([100, 100]))
    >>> memory_fsdp(rigl(density=0.1, every=100, until=1000), [layer], ranks=4).steady
    42500
    """
    held = sum(-(-spec.shape[0] // ranks) * spec.shape[1:].numel() for spec in specs)
    everything = sum(spec.numel for spec in specs)
    density = method.density(0)
    nnz = round(density * held)
    taken = len(method.signals & {Signal.GRAD, Signal.SIGN}) * dtype.itemsize
    return Memory(
        weights=held * dtype.itemsize,
        gradients=held * dtype.itemsize,
        state=held * dtype.itemsize * states,
        masks=held,
        averages=4 * held if Signal.MOMENTUM in method.signals else 0,
        rewiring=nnz * (8 + 2 * dtype.itemsize + taken),
        start=8 * round(density * everything),
    )
