"""Views of a layer: ``Edited`` after a drop, ``Captured`` before the optimizer's step, ``PartView`` for one part."""

import copy
from collections.abc import Iterable
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from rewire.core.layer import Context, Layer, Signal, numel, read_score, spec_of
from rewire.core.score import AnySignal, basic_signals
from rewire.core.topology import ScoredPositions, insert


class Edited:
    """A layer as it will be after a drop: a preview, nothing is written.

    ``drop``: the positions to drop that this process holds; ``lost``: how many positions are dropped on all ranks.
    ``index``: the layer's index in the network. ``regrow``: whether just-dropped positions are candidates for growth.
    """

    def __init__(self, base: Layer, drop: Tensor, index: int, regrow: bool = True, lost: int | None = None) -> None:
        self.base, self.drop, self.index, self.regrow = base, drop, index, regrow
        self.name, self.shape, self.frozen, self.span = base.name, base.shape, base.frozen, base.span
        self.lost = len(drop) if lost is None else lost

    @property
    def nnz(self) -> int:
        """How many weights survive the drop."""
        return self.base.nnz - self.lost

    @cached_property
    def _survives(self) -> Tensor:
        before = self.base.active()
        survives = torch.ones_like(before, dtype=torch.bool)
        survives[torch.searchsorted(before, self.drop)] = False
        return survives

    @cached_property
    def _active(self) -> Tensor:
        return self.base.active()[self._survives]

    def active(self) -> Tensor:
        """The positions that survive the drop."""
        return self._active

    def occupied(self) -> Tensor:
        """The positions that growth may not choose, sorted."""
        return self._active if self.regrow else self.base.active()

    def occupied_beside(self, chosen: Tensor, ctx: Context) -> Tensor:
        """The positions that growth may not draw once it has chosen some, sorted: any others may be drawn together."""
        return insert(chosen, self.occupied()) if len(chosen) else self.occupied()

    def admissible(self, candidates: ScoredPositions) -> ScoredPositions:
        """The candidates for growth that can be grown together: all, unless a constraint limits them."""
        return candidates

    @property
    def room(self) -> int:
        """How many weights can be grown."""
        return 0 if self.frozen else numel(self) - (self.nnz if self.regrow else self.base.nnz)

    def read(self, signal: AnySignal) -> Tensor:
        """The signal at the surviving positions."""
        return self.base.read(signal)[self._survives]

    def top_inactive(self, signal: AnySignal, k: int, floor: float = 0.0) -> ScoredPositions:
        """The ``k`` candidates for growth of largest ``|signal|``, at or above ``floor`` and not zero."""
        inactive = self.base.top_inactive(signal, k, floor)
        if not self.regrow or not len(self.drop):
            return inactive
        dropped = self.base.read(signal)[~self._survives].abs()
        eligible = (dropped >= floor) & (dropped > 0)
        values = torch.cat([inactive.values, dropped[eligible].to(inactive.values.dtype)])
        positions, order = torch.cat([inactive.positions, self.drop[eligible]]).sort()
        return ScoredPositions(values[order], positions).largest(k)

    def read_at(self, signal: AnySignal, positions: Tensor) -> Tensor:
        """The signal at sorted positions that were inactive before the drop."""
        return self.base.read_at(signal, positions)

    def read_by(self, part: "Declares", limit: int | None = None) -> "Edited":
        """The same view for one part, which may read only the signals that it declares."""
        self.active()  # computed once, and shared by the views of all parts
        view = copy.copy(self)
        view.base = PartView(self.base, part, limit=limit)
        return view


class Captured:
    """A layer that still has its gradients after the optimizer's step: O(k + nnz) values instead of a dense gradient.

    The largest inactive gradients, the gradients of the active weights and the signs of the weights are copied before
    the step, as far as the method reads them; weights and momentum are read after it.
    """

    def __init__(self, base: Layer, signals: frozenset[Signal]) -> None:
        self.base, self.spec = base, spec_of(base)
        self.name, self.shape, self.frozen, self.span = base.name, base.shape, base.frozen, base.span
        self.nnz = base.nnz
        self._active = base.active()
        self._copies = {s: base.read(s) for s in (Signal.GRAD, Signal.SIGN) if s in signals}
        self._tops: dict[AnySignal, tuple[ScoredPositions, int]] = {}
        self._samples: dict[AnySignal, tuple[Tensor, Tensor]] = {}
        self._complete: set[AnySignal] = set()  # the signals that were copied at all inactive positions

    def store_top(self, signal: AnySignal, top: ScoredPositions, limit: int) -> None:
        """Store the inactive positions of largest ``|signal|``, of which parts may read at most ``limit``."""
        self._tops[signal] = (top, limit)

    def store_all(self, signal: AnySignal) -> None:
        """Copy the signal at all inactive positions where it is not zero."""
        self.store_top(signal, self.base.top_inactive(signal, numel(self)), numel(self))
        self._complete.add(signal)

    def store_sample(self, signal: AnySignal, positions: Tensor) -> None:
        """Copy the signal at sorted inactive positions, which parts may read after the step."""
        self._samples[signal] = (positions, self.base.read_at(signal, positions))

    def active(self) -> Tensor:
        """The active positions, which the step does not change."""
        return self._active

    def read(self, signal: AnySignal) -> Tensor:
        """The gradient and the sign as they were before the step; everything else as it is now."""
        if not isinstance(signal, Signal):
            return read_score(self, signal)
        # A part may write into what it reads, and the parts after it read the same.
        return self._copies[signal].clone() if signal in self._copies else self.base.read(signal)

    def top_inactive(self, signal: AnySignal, k: int, floor: float = 0.0) -> ScoredPositions:
        """The ``k`` inactive positions of largest ``|signal|``; for gradients, as they were before the step."""
        if signal not in self._tops:
            return self.base.top_inactive(signal, k, floor)
        top, limit = self._tops[signal]
        if k > limit:
            raise ValueError(
                f"a part reads the {k} largest inactive values of {signal!r} in {self.name}, but only {limit} were "
                "captured before the optimizer's step, as many as `most` of the drop and of the allocation allow"
            )
        largest = top.largest(k)
        return largest.where(largest.values >= floor)

    def read_at(self, signal: AnySignal, positions: Tensor) -> Tensor:
        """The signal at sorted inactive positions; gradients as before the step, and only where they were sampled."""
        if signal in self._complete:
            return self._tops[signal][0].at(positions)
        if signal in self._samples:
            sampled, values = self._samples[signal]
            if bool(torch.isin(positions, sampled).all()):
                return values[torch.searchsorted(sampled, positions)]
        if Signal.GRAD in basic_signals([signal]):
            raise ValueError(
                f"a part reads {signal!r} at inactive positions of {self.name} that were not captured before the "
                "optimizer's step: name them in a method `sample(layer, index, ctx)` of the growth"
            )
        return self.base.read_at(signal, positions)


class Declares(Protocol):
    """A part that declares which signals it reads."""

    @property
    def signals(self) -> Iterable[AnySignal]: ...


class PartView:
    """A layer as one part may read it: reading a signal that the part does not declare in ``signals`` is an error.

    Undeclared signals are not kept for the rewiring: a gradient would read as zero. ``limit``: how many of the inactive
    positions the part may rank. A drop (``inactive=False``) may rank none.
    """

    def __init__(self, base: Layer, part: Declares, *, inactive: bool = True, limit: int | None = None) -> None:
        self.base, self.part, self.inactive, self.limit = base, part, inactive, limit
        self.name, self.shape, self.frozen, self.span = base.name, base.shape, base.frozen, base.span
        self.nnz = base.nnz

    def active(self) -> Tensor:
        """The active positions."""
        return self.base.active()

    def read(self, signal: AnySignal) -> Tensor:
        """The signal at the active positions."""
        self._refuse_undeclared(signal, frozenset(self.part.signals) | basic_signals(self.part.signals))
        return self.base.read(signal)

    def top_inactive(self, signal: AnySignal, k: int, floor: float = 0.0) -> ScoredPositions:
        """The ``k`` inactive positions of largest ``|signal|``."""
        self._refuse_undeclared(signal, frozenset(self.part.signals))
        if not self.inactive:
            raise ValueError(f"{self.part!r} ranks inactive positions of {self.name}: a drop reads active weights only")
        if not basic_signals([signal]) & {Signal.GRAD, Signal.MOMENTUM}:
            raise ValueError(
                f"{self.part!r} ranks inactive positions of {self.name} by {signal!r}, which is the same for all of "
                "them: weights are zero there; rank by the gradient or the momentum"
            )
        if self.limit is not None and k > self.limit:
            raise ValueError(
                f"{self.part!r} reads the {k} largest inactive values of {signal!r} in {self.name}, but it has to grow "
                f"{self.limit} weights there, and no more values are kept"
            )
        return self.base.top_inactive(signal, k, floor)

    def read_at(self, signal: AnySignal, positions: Tensor) -> Tensor:
        """The signal at sorted inactive positions."""
        self._refuse_undeclared(signal, frozenset(self.part.signals))
        if not self.inactive:
            raise ValueError(f"{self.part!r} reads inactive positions of {self.name}: a drop reads active weights only")
        return self.base.read_at(signal, positions)

    def _refuse_undeclared(self, signal: AnySignal, declared: frozenset[AnySignal]) -> None:
        if signal not in declared:
            listed = ", ".join(sorted(map(repr, self.part.signals))) or "none"
            raise ValueError(
                f"{self.part!r} reads {signal!r} of {self.name}, which it does not declare (its `signals`: {listed}). "
                f"Add {signal!r} to its `signals`, so that it is kept for the rewiring"
            )
