"""The seam between algorithms and storage: flat positions and integer counts, never masks."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from rewire.ranks import ALONE, Ranks, total
from rewire.topology import Edit, Top, merge


class Signal(Enum):
    """What may be read about a weight."""

    WEIGHT = "weight"
    GRAD = "grad"
    MOMENTUM = "momentum"  # an average of the dense gradient
    SIGN = "sign"  # of the weight before the optimizer's last update

    def __repr__(self) -> str:  # so that the repr of a method is code that builds it
        return f"Signal.{self.name}"


class Layer(Protocol):
    """Read-only view of one sparse weight: counts of the whole of it, positions and values of what is held here."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> torch.Size: ...
    @property
    def frozen(self) -> bool:
        """Counted in the budget, but neither dropped from nor grown into."""

    @property
    def nnz(self) -> int:
        """How many weights are active."""

    @property
    def span(self) -> range:
        """The flat positions that this process holds: all of them, unless the layer is sharded."""

    def active(self) -> Tensor:
        """The flat positions of the active weights: ``(nnz,)`` int64, sorted."""

    def read(self, signal: Signal) -> Tensor:
        """The signal at the active positions: ``(nnz,)``, aligned with ``active()``."""

    def top_inactive(self, signal: Signal, k: int, floor: float = 0.0) -> Top:
        """The ``k`` inactive positions of largest ``|signal|``, of those at or above ``floor`` and not zero."""


@dataclass(frozen=True)
class LayerSpec:
    """What a start knows about a weight: its name, its shape and which units it connects."""

    name: str
    shape: torch.Size
    groups: int = 1
    transposed: bool = False

    @property
    def numel(self) -> int:
        """How many weights a dense layer has."""
        return math.prod(self.shape)


@dataclass
class Context:
    """What a rewiring knows besides the layers: the step, the seed, the method's memory and who else takes part."""

    step: int = 0
    seed: int = 0
    memory: dict[str, Any] = field(default_factory=dict)
    ranks: Ranks = ALONE

    def generator(self, purpose: str, layer: int) -> torch.Generator:
        """A fresh generator for one purpose in one layer at this step: ranks agree and a resumed run draws alike."""
        key = f"{self.seed}/{self.step}/{layer}/{purpose}".encode()
        digest = hashlib.blake2b(key, digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def numel(layer: Layer) -> int:
    """How many weights a dense layer would have."""
    return math.prod(layer.shape)


def spare(layer: Layer) -> int:
    """How many weights a layer can lose: a layer keeps its last one."""
    return 0 if layer.frozen else max(layer.nnz - 1, 0)


class Edited:
    """A layer as it will be after a drop: a pure look-ahead, nothing is written.

    ``regrow`` tells whether the just-dropped positions are candidates for growth. ``lost`` is how many are dropped on
    all ranks.
    """

    def __init__(self, base: Layer, drop: Tensor, index: int, regrow: bool = True, lost: int | None = None) -> None:
        self.base, self.drop, self.index, self.regrow = base, drop, index, regrow
        self.name, self.shape, self.frozen, self.span = base.name, base.shape, base.frozen, base.span
        self.lost = len(drop) if lost is None else lost

    @property
    def nnz(self) -> int:
        """How many weights survive."""
        return self.base.nnz - self.lost

    @cached_property
    def _kept(self) -> Tensor:
        before = self.base.active()
        kept = torch.ones_like(before, dtype=torch.bool)
        kept[torch.searchsorted(before, self.drop)] = False
        return kept

    @cached_property
    def _active(self) -> Tensor:
        return self.base.active()[self._kept]

    def active(self) -> Tensor:
        """The positions that survive the drop."""
        return self._active

    def occupied(self) -> Tensor:
        """The positions that growth may not choose, sorted."""
        return self._active if self.regrow else self.base.active()

    @property
    def room(self) -> int:
        """How many weights can be grown."""
        return 0 if self.frozen else numel(self) - (self.nnz if self.regrow else self.base.nnz)

    def read(self, signal: Signal) -> Tensor:
        """The signal at the surviving positions."""
        return self.base.read(signal)[self._kept]

    def top_inactive(self, signal: Signal, k: int, floor: float = 0.0) -> Top:
        """The strongest candidates for growth, the just-dropped among them."""
        found = self.base.top_inactive(signal, k, floor)
        if not self.regrow or not len(self.drop):
            return found
        dropped = self.base.read(signal)[~self._kept].abs()
        strong = (dropped >= floor) & (dropped > 0)
        values = torch.cat([found.values, dropped[strong].to(found.values.dtype)])
        positions, order = torch.cat([found.positions, self.drop[strong]]).sort()
        return Top(values[order], positions).strongest(k)


def strongest(
    layers: Sequence[Layer], signal: Signal, k: int, scales: Sequence[float] | None = None, ranks: Ranks = ALONE
) -> list[Top]:
    """The ``k`` largest ``|signal|`` at the inactive positions of all layers, as one list per layer.

    Streaming: layer by layer, keeping the k largest seen so far, whose smallest is the floor below which the next layer
    discards a value before copying it. Largest layers first, because they raise the floor fastest; the order does not
    change the answer. Values are divided by ``scales`` for the comparison when given.
    """
    scales = scales or [1.0] * len(layers)
    found: dict[int, Top] = {}
    floor = 0.0
    for i in sorted(range(len(layers)), key=lambda i: -numel(layers[i])):
        # With scales, a hair below the floor: multiplying back could round a tie away, and merge() decides exactly.
        least = floor if scales[i] == 1.0 else floor * scales[i] * (1 - 1e-6)
        found[i] = layers[i].top_inactive(signal, 0 if layers[i].frozen else k, least)
        if sum(map(len, found.values())) >= k:
            seen = sorted(found)  # in the order of the layers, so that ties fall as they would in one sort
            best = merge([found[j] for j in seen], k, [scales[j] for j in seen])
            floor = min(float(t.values.min()) / scales[j] for j, t in zip(seen, best, strict=True) if len(t))
            found = dict(zip(seen, best, strict=True))
    return ranks.merge([found[i] for i in range(len(layers))], k, scales)


def means(layers: Sequence[Layer], signal: Signal, ranks: Ranks) -> list[float]:
    """The mean ``|signal|`` of the active weights of each layer.

    Summed as whole multiples of a power of two, as fine as fits: the result does not depend on who adds what.
    """
    sizes = [layer.read(signal).abs() for layer in layers]
    exponents = [math.frexp(float(one.max()))[1] if len(one) else -(1 << 20) for one in sizes]
    shared = [max(column) for column in zip(*ranks.gather(exponents), strict=True)]
    shifts = [62 - layer.nnz.bit_length() - most for layer, most in zip(layers, shared, strict=True)]
    wide = [one.to(torch.promote_types(one.dtype, torch.float32)) for one in sizes]
    sums = total(ranks, (_whole(one, shift) for one, shift in zip(wide, shifts, strict=True)))
    return [math.ldexp(s / max(layer.nnz, 1), -shift) for s, layer, shift in zip(sums, layers, shifts, strict=True)]


def _whole(values: Tensor, shift: int) -> int:
    """The sum of ``values * 2**shift``, each rounded; in two steps, because the factor alone may be out of range."""
    half = shift // 2
    return int((values * 2.0**half * 2.0 ** (shift - half)).round().long().sum()) if len(values) else 0


class Captured:
    """A layer that goes on answering for what the optimizer's step is about to change: O(k + nnz) instead of dense.

    The strongest inactive gradients, the gradients of the active weights and, if asked for, the signs of the weights
    are taken before the step; weights and momentum are read after it.
    """

    def __init__(self, base: Layer, signals: frozenset[Signal]) -> None:
        self.base = base
        self.name, self.shape, self.frozen, self.span = base.name, base.shape, base.frozen, base.span
        self.nnz = base.nnz
        self._active = base.active()
        self._taken = {s: base.read(s) for s in (Signal.GRAD, Signal.SIGN) if s in signals}
        self._top: Top | None = None
        self._limit = 0

    def keep(self, found: Top, limit: int) -> None:
        """Keep the strongest inactive gradients: at most ``limit`` will be asked for."""
        self._top, self._limit = found, limit

    def active(self) -> Tensor:
        """The active positions, which the step does not change."""
        return self._active

    def read(self, signal: Signal) -> Tensor:
        """The gradient and the sign as they were before the step; everything else as it is now."""
        return self._taken[signal] if signal in self._taken else self.base.read(signal)

    def top_inactive(self, signal: Signal, k: int, floor: float = 0.0) -> Top:
        """The strongest inactive gradients as they were before the step."""
        if signal is not Signal.GRAD or self._top is None:
            return self.base.top_inactive(signal, k, floor)
        assert k <= self._limit, f"{self.name}: {k} candidates asked for, {self._limit} captured"
        best = self._top.strongest(k)
        return best.where(best.values >= floor)


def no_edit(layer: Layer) -> Edit:
    """An edit that changes nothing."""
    empty = layer.active()[:0]
    return Edit(empty, empty, torch.empty(0, device=empty.device))
