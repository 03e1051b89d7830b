"""Schedules: at which steps a network is rewired, and which fraction of its weights moves then.

A schedule maps a step to the fraction to move, or to ``None`` if there is no rewiring at that step. Steps count
completed optimizer steps, so the first step is 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from rewire.core.protocols import Curve


@dataclass(frozen=True)
class Never:
    """The topology stays as it was at the start."""

    rewires: ClassVar[bool] = False

    def __call__(self, step: int) -> float | None:
        return None


@dataclass(frozen=True)
class Periodic:
    """Every ``every`` steps up to and including ``until`` (``None``: without end), the fraction that a curve gives.

    >>> from rewire.parts import Constant
    >>> schedule = Periodic(every=2, until=4, fraction=Constant(0.1))
    >>> [schedule(step) for step in range(1, 7)]
    [None, 0.1, None, 0.1, None, None]
    """

    every: int
    until: int | None
    fraction: Curve

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("until", self.until)):
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= (name == "every")
            if not whole and not (name == "until" and value is None):
                raise ValueError(f"{name} must be a whole number of optimizer steps, not {value!r}")
        if self.until is not None and self.until < self.every:
            raise ValueError(
                f"until={self.until} is before the first rewiring, at every={self.every}: nothing would ever be rewired"
            )
        if not all(0 <= end <= 1 for end in self.fraction.ends()):
            raise ValueError(f"the fraction of weights to move must lie in [0, 1], not {self.fraction!r}")

    @property
    def last(self) -> int:
        """The step of the last rewiring, at which a changing density must reach its target."""
        if self.until is None:
            raise ValueError("the method changes up to its last rewiring and needs a last step: pass until=")
        return self.until - self.until % self.every

    def __call__(self, step: int) -> float | None:
        due = step > 0 and step % self.every == 0 and (self.until is None or step <= self.until)
        return self.fraction(step) if due else None
