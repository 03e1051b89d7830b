"""How a topology changes: the overlap of two topologies, and how many positions were ever active."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rewire.core.layer import Layer


@dataclass(frozen=True)
class Overlap:
    """How many weights of a layer exist before, after, and in both topologies."""

    before: int
    after: int
    both: int

    @property
    def kept(self) -> float:
        """The share of the earlier weights that still exist."""
        return self.both / self.before if self.before else 1.0

    @property
    def jaccard(self) -> float:
        """Intersection over union of the two sets of positions: 1 if they are equal."""
        union = self.before + self.after - self.both
        return self.both / union if union else 1.0


def overlap(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, Overlap]:
    """The overlap of each layer, from two dictionaries of masks by layer name.

    >>> import torch
    >>> overlap({"a": torch.tensor([True, True, False])}, {"a": torch.tensor([True, False, True])})["a"]
    Overlap(before=2, after=2, both=1)
    """
    different = before.keys() ^ after.keys()
    different |= {name for name in before.keys() & after.keys() if before[name].shape != after[name].shape}
    if different:
        raise ValueError(f"the topologies are of different models: they differ in {', '.join(sorted(different))}")
    pairs = {name: (before[name].bool(), after[name].bool()) for name in before}
    return {name: Overlap(int(a.sum()), int(b.sum()), int((a & b).sum())) for name, (a, b) in pairs.items()}


class Exploration:
    """Records which positions of some layers were ever active; call ``add`` after every rewiring.

    Takes one byte per position in memory and one bit per position in ``state_dict``.

    >>> import rewire, torch
    >>> model = torch.nn.Linear(4, 4)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> rewirer = rewire.sparsify(model, optimizer, rewire.set_(density=0.25, every=1, until=9))
    >>> seen = Exploration(rewirer.layers)
    >>> rewirer.on_rewire = lambda rewiring: seen.add()
    >>> seen.share
    0.25
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.ever = {
            layer.name: torch.zeros(layer.shape, dtype=torch.bool, device=layer.active().device) for layer in layers
        }
        self.add()

    def add(self) -> None:
        """Record the positions that are active now. Writes once per active weight and does not synchronise a GPU."""
        for layer in self.layers:
            self.ever[layer.name].view(-1)[layer.active()] = True

    @property
    def positions(self) -> dict[str, int]:
        """How many positions of each layer were ever active."""
        return {name: int(mask.sum()) for name, mask in self.ever.items()}

    @property
    def share(self) -> float:
        """The share of all positions that were ever active (in-time over-parameterisation: Liu et al., 2021)."""
        return sum(self.positions.values()) / sum(mask.numel() for mask in self.ever.values())

    def state_dict(self) -> dict[str, Tensor]:
        """One bit per position, packed into bytes."""
        return {name: torch.from_numpy(np.packbits(mask.cpu().numpy())) for name, mask in self.ever.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue a recording."""
        for name, mask in self.ever.items():
            mask.copy_(unpacked_bits(state[name], mask.shape))


def unpacked_bits(bits: Tensor, shape: torch.Size) -> Tensor:
    """The mask that ``Exploration.state_dict`` wrote for a layer of this shape.

    >>> unpacked_bits(torch.tensor([0b10100000], dtype=torch.uint8), torch.Size([3]))
    tensor([ True, False,  True])
    """
    count = shape.numel()
    if bits.dtype != torch.uint8 or bits.shape != (-(-count // 8),):
        raise ValueError(f"{tuple(bits.shape)} {bits.dtype} are not the bits of {count} positions")
    return torch.from_numpy(np.unpackbits(bits.numpy(), count=count).astype(bool)).view(shape)
