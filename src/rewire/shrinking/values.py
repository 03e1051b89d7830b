"""What is known about a tensor of the graph: which dimension holds channels, and which of them are constants."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Value:
    """A tensor of the graph, described by its channels.

    Indices along ``dim`` with the same number in ``channels`` belong to one channel: flattening a feature map repeats
    each channel for every pixel. An index that is not ``live`` holds ``constant`` for every input and at every pixel.
    """

    dim: int
    channels: Tensor  # (size,) int64, numbers from ChannelGroups
    live: Tensor  # (size,) bool
    constant: Tensor  # (size,) float64, zero where live

    def __len__(self) -> int:
        return len(self.channels)

    def with_contents(self, live: Tensor, constant: Tensor) -> "Value":
        """The same channels with other contents; an index whose constant is not finite becomes live."""
        live = live | ~constant.isfinite()
        return replace(self, live=live, constant=torch.where(live, 0.0, constant.double()))

    def gathered(self, dim: int, source: Tensor) -> "Value":
        """The value whose index ``j`` along ``dim`` is index ``source[j]`` of this one."""
        return Value(dim, self.channels[source], self.live[source], self.constant[source])


class ChannelGroups:
    """Channels that are kept or removed together, as a union-find structure.

    >>> groups = ChannelGroups()
    >>> a, b = groups.new(2), groups.new(2)
    >>> groups.join(a, b)
    >>> groups.of(b)
    tensor([0, 1])
    """

    def __init__(self) -> None:
        self._parent: list[int] = []

    def __len__(self) -> int:
        return len(self._parent)

    def new(self, count: int) -> Tensor:
        """New channels, each in a group of its own."""
        first = len(self._parent)
        self._parent.extend(range(first, first + count))
        return torch.arange(first, first + count)

    def join(self, channels: Tensor, others: Tensor) -> None:
        """Put each channel into one group with the other channel at the same index."""
        for a, b in zip(channels.tolist(), others.tolist(), strict=True):
            first, second = sorted((self._root(a), self._root(b)))
            self._parent[second] = first

    def of(self, channels: Tensor) -> Tensor:
        """The group of each channel."""
        return torch.tensor([self._root(channel) for channel in channels.tolist()], dtype=torch.int64)

    def _root(self, channel: int) -> int:
        while self._parent[channel] != channel:
            self._parent[channel] = self._parent[self._parent[channel]]
            channel = self._parent[channel]
        return channel


def concatenated(dim: int, values: Sequence[Value]) -> Value:
    """Values one after the other along ``dim``."""
    return Value(
        dim,
        torch.cat([value.channels for value in values]),
        torch.cat([value.live for value in values]),
        torch.cat([value.constant for value in values]),
    )
