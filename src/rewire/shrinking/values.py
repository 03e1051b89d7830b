"""What is known about a tensor of the graph: which dimension holds channels, and which of them are constants."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Value:
    """A tensor reduced to its channels.

    Two indices with the same entry in ``channels`` are one channel (flattening a map repeats its channels). An index
    that is not ``live`` holds ``constant`` in every example and at every place of the map.
    """

    dim: int
    channels: Tensor  # (size,) int64, names given by Classes
    live: Tensor  # (size,) bool
    constant: Tensor  # (size,) float64, zero where live

    def __len__(self) -> int:
        return len(self.channels)

    def known(self, live: Tensor, constant: Tensor) -> "Value":
        """The same channels with other contents; a constant that is not finite is not a constant."""
        live = live | ~constant.isfinite()
        return replace(self, live=live, constant=torch.where(live, 0.0, constant.double()))

    def alive(self) -> "Value":
        """The same channels with nothing known about them."""
        return self.known(torch.ones_like(self.live), torch.zeros_like(self.constant))

    def taken(self, dim: int, source: Tensor) -> "Value":
        """The value whose index ``j`` along ``dim`` is index ``source[j]`` of this one."""
        return Value(dim, self.channels[source], self.live[source], self.constant[source])


class Classes:
    """Channels that stay or go together, as a union-find.

    >>> classes = Classes()
    >>> a, b = classes.fresh(2), classes.fresh(2)
    >>> classes.join(a, b)
    >>> classes.of(b)
    tensor([0, 1])
    """

    def __init__(self) -> None:
        self._parent: list[int] = []

    def __len__(self) -> int:
        return len(self._parent)

    def fresh(self, count: int) -> Tensor:
        """New channels, each in a class of its own."""
        first = len(self._parent)
        self._parent.extend(range(first, first + count))
        return torch.arange(first, first + count)

    def join(self, one: Tensor, other: Tensor) -> None:
        """Each channel of ``one`` together with that of ``other``."""
        for a, b in zip(one.tolist(), other.tolist(), strict=True):
            first, second = sorted((self._root(a), self._root(b)))
            self._parent[second] = first

    def of(self, channels: Tensor) -> Tensor:
        """The class of each channel."""
        return torch.tensor([self._root(one) for one in channels.tolist()], dtype=torch.int64)

    def _root(self, one: int) -> int:
        while self._parent[one] != one:
            self._parent[one] = self._parent[self._parent[one]]
            one = self._parent[one]
        return one


def joined(dim: int, values: Sequence[Value]) -> Value:
    """Values one behind the other along ``dim``."""
    parts = ([v.channels for v in values], [v.live for v in values], [v.constant for v in values])
    channels, live, constant = (torch.cat(part) for part in parts)
    return Value(dim, channels, live, constant)
