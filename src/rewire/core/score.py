"""Scores: numbers for ranking weights that are computed from signals, such as ``|weight * gradient|``.

A score can be used wherever a ``Signal`` can: in ``Lowest``, ``Strongest``, ``Mix``, ``GlobalTop``.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

MOMENTUM_DECAY = 0.9  # of Signal.MOMENTUM


class Signal(Enum):
    """What may be read about a weight."""

    WEIGHT = "weight"
    GRAD = "grad"
    MOMENTUM = "momentum"  # a running average of the dense gradient
    SIGN = "sign"  # of the weight before the optimizer's last update

    def __repr__(self) -> str:  # so that the repr of a method is code that builds it
        return f"Signal.{self.name}"


@runtime_checkable
class ScoreLike(Protocol):
    """A score: the signals that it reads, and an elementwise function of them. Its absolute value is ranked.

    It must be hashable, and its ``repr`` must identify it, because checkpoints store the ``repr`` of a method: a frozen
    dataclass does both. A score of ``Signal.MOMENTUM`` may have an attribute ``decay``.
    """

    @property
    def reads(self) -> tuple[Signal, ...]:
        """The signals that are passed to the function, in this order."""

    def __call__(self, *values: Tensor) -> Tensor: ...


AnySignal = Signal | ScoreLike


@dataclass(frozen=True, repr=False)
class Score:
    """A score of your own: a name, the signals that it reads, and an elementwise function of them.

    At inactive positions ``WEIGHT`` and ``SIGN`` are zero. Two scores are equal if their names, the signals that they
    read and the qualified names of their functions are. ``decay``: of the running average, if ``MOMENTUM`` is read.

    >>> saliency = Score("saliency", (Signal.WEIGHT, Signal.GRAD), lambda weight, grad: weight * grad)
    >>> saliency
    Score('saliency', (Signal.WEIGHT, Signal.GRAD), '<lambda>')
    >>> saliency(torch.tensor([2.0, -1.0]), torch.tensor([0.5, 3.0]))
    tensor([ 1., -3.])
    """

    name: str
    reads: tuple[Signal, ...]
    function: Callable[..., Tensor] = field(compare=False)
    decay: float | None = None
    function_name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", tuple(self.reads))
        object.__setattr__(self, "function_name", qualified_name(self.function))
        check_score(self)

    def __call__(self, *values: Tensor) -> Tensor:
        return self.function(*values)

    def __repr__(self) -> str:
        decay = "" if self.decay is None else f", decay={self.decay}"
        return f"Score({self.name!r}, {self.reads!r}, {self.function_name!r}{decay})"


def qualified_name(function: object) -> str:
    """A name that identifies a function in the ``repr`` of a method: the same in every process and session."""
    if not callable(function):
        raise TypeError(f"expected a function, not {function!r}")
    name = getattr(function, "__qualname__", None) or repr(function)
    if " at 0x" in name:
        raise TypeError(
            f"{function!r} has no name that a checkpoint could store: use a function, or an instance of a frozen "
            "dataclass with __call__"
        )
    return str(name)


def check_score(score: ScoreLike) -> None:
    """Raise if the signals of a score, or its decay, cannot be used."""
    reads, decay = tuple(score.reads), getattr(score, "decay", None)
    if not reads or not all(isinstance(signal, Signal) for signal in reads):
        raise TypeError(f"a score reads one or more members of Signal, not {score.reads!r}")
    if Signal.GRAD in reads and Signal.MOMENTUM in reads:
        raise ValueError(
            f"{score!r} reads both the gradient and its average: the gradient is taken before the optimizer's step and "
            "the average after it; read one of them"
        )
    if decay is not None and Signal.MOMENTUM not in reads:
        raise ValueError(f"decay={decay} has no effect: {score!r} does not read Signal.MOMENTUM")
    if decay is not None and not 0 <= decay < 1:
        raise ValueError(f"decay must lie in [0, 1), not {decay!r}")


def basic_signals(signals: Iterable[AnySignal]) -> frozenset[Signal]:
    """The signals themselves, and those that the scores among them read."""
    return frozenset(
        basic for signal in signals for basic in ((signal,) if isinstance(signal, Signal) else signal.reads)
    )


def momentum_decay(signals: Iterable[AnySignal]) -> float:
    """The decay of the one running average of the gradient that a method can have."""
    reading = [signal for signal in signals if Signal.MOMENTUM in basic_signals([signal])]
    decays = {getattr(signal, "decay", None) or MOMENTUM_DECAY for signal in reading}
    if len(decays) > 1:
        raise ValueError(
            f"one running average of the gradient is kept, and {', '.join(sorted(map(repr, reading)))} ask for "
            f"different decays: {', '.join(map(str, sorted(decays)))}"
        )
    return float(decays.pop()) if decays else MOMENTUM_DECAY


def evaluate(score: ScoreLike, values: Sequence[Tensor]) -> Tensor:
    """The score for the values of its signals, checked: a finite number for each weight."""
    result = score(*values)
    shape = values[0].shape
    if not isinstance(result, Tensor) or result.shape != shape:
        what = f"a tensor of shape {tuple(result.shape)}" if isinstance(result, Tensor) else repr(result)
        raise ValueError(f"{score!r} must return a number for each weight, of shape {tuple(shape)}, not {what}")
    result = result.to(values[0].dtype)
    if not bool(torch.isfinite(result).all()):
        raise ValueError(f"{score!r} is not finite for some weights: weights cannot be ranked by it")
    return result
