"""The parts of a method, as protocols: what each of them is asked and must answer. Their members are in ``parts/``."""

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from rewire.core.layer import Context, Layer, LayerSpec, Signal
from rewire.core.topology import Top
from rewire.core.views import Edited


@runtime_checkable
class Curve(Protocol):
    """A number that depends on the step."""

    def __call__(self, step: int) -> float: ...

    def ends(self) -> tuple[float, float]:
        """The first and the last value; all others lie between them."""


@runtime_checkable
class Schedule(Protocol):
    """The fraction of the active weights to move at a step, or ``None``: not now."""

    def __call__(self, step: int) -> float | None: ...


class Rule(Protocol):
    """How many of ``n`` weights each layer gets: whole numbers that sum to ``n``, at least ``least`` in each layer."""

    def __call__(self, specs: Sequence[LayerSpec], n: int, least: Sequence[int]) -> list[int]: ...


class Start(Protocol):
    """Sorted positions of the first weights of each layer, ``n`` in all."""

    def __call__(self, specs: Sequence[LayerSpec], n: int, ctx: Context) -> list[Tensor]: ...


class Drop(Protocol):
    """Sorted positions to drop in each layer, about ``n`` in all."""

    exact: ClassVar[bool]  # drops exactly n, as a falling density needs

    @property
    def signals(self) -> frozenset[Signal]:
        """What is read of the active weights."""

    def most(self, layers: Sequence[Layer], n: int) -> list[int]:
        """The most that each layer may lose, known before the optimizer's step."""

    def __call__(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[Tensor]: ...


class Allocate(Protocol):
    """Divide ``n`` new weights over the layers, seen before and after the drop."""

    @property
    def signals(self) -> frozenset[Signal]:
        """What is read of the active and of the inactive weights."""

    def most(self, dropped: Sequence[int], room: Sequence[int]) -> list[int]:
        """The most that each layer may get when at most ``dropped`` go and at most ``room`` fit."""

    def __call__(self, before: Sequence[Layer], after: Sequence[Edited], n: int, ctx: Context) -> list[int]: ...


@runtime_checkable
class RanksTheNetwork(Protocol):
    """An ``Allocate`` that ranks gradients over the whole network: only its candidates are captured before a step."""

    def candidates(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[Top] | None:
        """The ``n`` strongest inactive gradients, layer by layer; ``None`` if it ranks another signal."""


class Grow(Protocol):
    """Exactly ``k`` sorted positions that are free after the drop."""

    @property
    def signals(self) -> frozenset[Signal]:
        """What is read of the inactive weights."""

    def __call__(self, layer: Edited, k: int, ctx: Context) -> Tensor: ...


class Birth(Protocol):
    """The values of ``n`` weights that are born in a layer."""

    def __call__(self, n: int, layer: Edited, ctx: Context) -> Tensor: ...
