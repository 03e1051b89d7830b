"""The parts of a method, as protocols: what each of them is asked and must return. ``parts/`` implements them.

What a part returns is checked before anything is changed (``core.validate``).
"""

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from rewire.core.layer import Context, Layer, LayerSpec
from rewire.core.score import AnySignal
from rewire.core.topology import ScoredPositions
from rewire.core.views import Edited


@runtime_checkable
class Curve(Protocol):
    """A number that depends on the step.

    A density whose values do not all lie between its ends has a method ``bounds()``: the lowest and the highest value.
    One that may fall although it does not end lower than it begins has an attribute ``falls = True``.
    """

    def __call__(self, step: int) -> float: ...

    def ends(self) -> tuple[float, float]:
        """The first and the last value; all others lie between them, unless there is a method ``bounds``."""


@runtime_checkable
class Schedule(Protocol):
    """The fraction of the active weights to move at a step, or ``None`` if there is no rewiring at this step."""

    def __call__(self, step: int) -> float | None: ...


class Rule(Protocol):
    """How many of ``n`` weights each layer gets: integers that sum to ``n``, at least ``least[i]`` in layer ``i``."""

    def __call__(self, specs: Sequence[LayerSpec], n: int, least: Sequence[int]) -> list[int]: ...


class Start(Protocol):
    """Sorted positions of the first weights of each layer, exactly ``n`` in all and at least one in each layer.

    ``ctx.model``, ``ctx.parameters`` and ``ctx.weights`` are the model, its parameters and their dense values, in the
    order of the specs. It may run the model on a batch: ranks with copies of the model compare what they got, unless
    the start has an attribute ``is_random = True``: then it depends on nothing but the seed.

    Under a constraint the positions are fitted to it: the largest weights stay if the start has an attribute
    ``reads_weights = True``, random ones otherwise; with ``gives_positions = True`` they must satisfy it already. Such
    a start may have a method ``positions(specs, ctx)`` that does not ask for ``n``: where whole tiles are counted, the
    number of weights follows from them.
    """

    def __call__(self, specs: Sequence[LayerSpec], n: int, ctx: Context) -> list[Tensor]: ...


class Drop(Protocol):
    """Sorted positions to drop in each layer: ``n`` in all, or about ``n`` if the part is not ``exact``.

    One that drops ``n`` or more has an attribute ``at_least = True``: it serves a falling density too. A part that does
    not admit all layers has a method ``refuse(specs)``, which ``sparsify`` calls.
    """

    exact: ClassVar[bool]  # whether exactly n weights are dropped, as a falling density needs

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The signals that are read of active weights."""

    def most(self, layers: Sequence[Layer], n: int) -> list[int]:
        """The largest number of weights that each layer may lose, known before the optimizer's step."""

    def __call__(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[Tensor]: ...


class Allocate(Protocol):
    """Divides ``n`` new weights over the layers, given the layers before and after the drop."""

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The signals that are read of active and of inactive weights."""

    def most(self, dropped: Sequence[int], room: Sequence[int]) -> list[int]:
        """The largest number of weights that each layer may get, if it loses at most ``dropped`` and has ``room``."""

    def __call__(self, before: Sequence[Layer], after: Sequence[Edited], n: int, ctx: Context) -> list[int]: ...


@runtime_checkable
class RanksTheNetwork(Protocol):
    """An ``Allocate`` that ranks gradients over the whole network: only its candidates are captured before a step."""

    def candidates(self, layers: Sequence[Layer], n: int, ctx: Context) -> list[ScoredPositions] | None:
        """The ``n`` largest inactive gradients, as one list per layer; ``None`` if it does not rank gradients."""


@runtime_checkable
class Samples(Protocol):
    """A ``Grow`` that chooses among some inactive positions only: the signals there are captured before a step."""

    def sample(self, layer: Layer, index: int, ctx: Context) -> Tensor:
        """Sorted inactive positions of a layer, before the drop; the same whenever it is called at one step."""


class Grow(Protocol):
    """Exactly ``k`` sorted positions of a layer that are free after the drop."""

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The signals that are read of inactive weights."""

    def __call__(self, layer: Edited, k: int, ctx: Context) -> Tensor: ...


class Birth(Protocol):
    """The values of ``n`` new weights of a layer."""

    def __call__(self, n: int, layer: Edited, ctx: Context) -> Tensor: ...
