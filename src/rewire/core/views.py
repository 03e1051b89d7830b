"""Layers seen ahead of or behind the optimizer's step: ``Edited`` after a drop, ``Captured`` before the step."""

from functools import cached_property

import torch
from torch import Tensor

from rewire.core.layer import Layer, Signal, numel
from rewire.core.topology import Top


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
