"""What a part asks of other ranks, declared so that the cost of a rewiring can be computed without running it.

A part that calls ``ctx.ranks`` has a method ``collectives(layers)``: the calls of one rewiring of that many layers.
``rewire.analysis.scale`` turns them into messages and bytes.
"""

from dataclasses import dataclass

from rewire.core.score import AnySignal


@dataclass(frozen=True)
class Gather:
    """``times`` calls of ``ranks.gather`` with ``numbers`` integers each."""

    numbers: int
    times: int = 1


@dataclass(frozen=True)
class Select:
    """``times`` calls of ``ranks.largest`` or ``ranks.merge`` on ``lists`` lists of values of a signal.

    ``contests``: how many independent selections one call makes, ``lists`` for ``largest`` and 1 for ``merge``.
    ``itemsize``: the bytes of a value, if it does not have those of the signal.
    """

    contests: int
    lists: int
    signal: AnySignal
    times: int = 1
    itemsize: int | None = None


Collectives = list[Gather | Select]
