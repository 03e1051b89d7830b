"""Constraints: a structure that the weights of every layer have from the start on, at every step.

Each cuts a layer into tiles. Its matrix is that of a (grouped) convolution: outputs, inputs of a group, taps.
"""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from rewire.core.layer import LayerSpec, Signal
from rewire.core.score import AnySignal
from rewire.core.tiles import Tiles


@dataclass(frozen=True)
class NM:
    """At most ``n`` weights in every ``m`` consecutive inputs of an output, such as 2:4.

    In a convolution, ``m`` consecutive input channels at the same tap. At a density of ``n / m`` every group is full.
    """

    n: int
    m: int
    whole: ClassVar[bool] = False
    even: ClassVar[bool] = False
    least_salient: ClassVar[float] = 0.0
    signals: ClassVar[frozenset[AnySignal]] = frozenset()

    def __post_init__(self) -> None:
        for name, value in (("n", self.n), ("m", self.m)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} of N:M must be a whole number of at least 1, not {value!r}")
        if self.n > self.m:
            raise ValueError(f"N:M means n of every m weights: n={self.n} must not exceed m={self.m}")

    @property
    def limit(self) -> int:
        """The most weights that a group may have."""
        return self.n

    def tiles(self, spec: LayerSpec) -> Tiles:
        """Groups of ``m`` inputs."""
        rows, columns, taps = _matrix(spec)
        if spec.transposed:
            raise ValueError(f"{spec.name} is transposed, and {self!r} groups the inputs of an output: {_LEAVE_OUT}")
        if columns % self.m:
            raise ValueError(
                f"each output of {spec.name} has {columns} inputs, which groups of {self.m} do not divide "
                f"({self!r}): {_LEAVE_OUT}"
            )
        return Tiles((rows, columns, taps), (1, self.m, 1))


@dataclass(frozen=True)
class FanIn:
    """Every output of a layer has equally many weights, as many as the budget of the layer allows (SRigL).

    ``least_salient``: outputs with a lower share of salient weights lose all their weights to the other outputs of the
    layer, and stay empty (ablation). Salient are the weights that survive the drop, and as many missing ones of largest
    gradient as were dropped. Never, if it is 0.
    """

    least_salient: float = 0.0
    whole: ClassVar[bool] = False
    even: ClassVar[bool] = True
    limit: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not isinstance(self.least_salient, (int, float)) or not 0 <= self.least_salient <= 1:
            raise ValueError(f"least_salient is a share and must lie in [0, 1], not {self.least_salient!r}")

    @property
    def signals(self) -> frozenset[AnySignal]:
        """The gradient, if outputs may be emptied."""
        return frozenset({Signal.GRAD} if self.least_salient else ())

    def tiles(self, spec: LayerSpec) -> Tiles:
        """The weights of one output."""
        return _outputs(spec, self)


@dataclass(frozen=True)
class Blocks:
    """Blocks of ``rows`` outputs and ``columns`` inputs exist as a whole or not at all; ``rows x rows`` by default.

    In a convolution, a block has one tap. The density is the share of blocks that exist.
    """

    rows: int
    columns: int | None = None
    whole: ClassVar[bool] = True
    even: ClassVar[bool] = False
    limit: ClassVar[None] = None
    least_salient: ClassVar[float] = 0.0
    signals: ClassVar[frozenset[AnySignal]] = frozenset()

    def __post_init__(self) -> None:
        for name, value in (("rows", self.rows), ("columns", self.columns)):
            if value is None and name == "columns":
                continue
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} of a block must be a whole number of at least 1, not {value!r}")

    def tiles(self, spec: LayerSpec) -> Tiles:
        """The blocks of the matrix of each tap."""
        rows, columns, taps = _matrix(spec)
        block = (self.rows, self.columns or self.rows)
        height, width = block[::-1] if spec.transposed else block  # its rows are inputs
        if (rows // spec.groups) % height or columns % width:
            matrix = (rows // spec.groups, columns)
            outputs, inputs = matrix[::-1] if spec.transposed else matrix
            groups = f" in each of {spec.groups} groups" if spec.groups > 1 else ""
            raise ValueError(
                f"{spec.name} is a matrix of {outputs} x {inputs}{groups}, which blocks of {block[0]} x {block[1]} do "
                f"not divide ({self!r}): {_LEAVE_OUT}"
            )
        return Tiles((rows, columns, taps), (height, width, 1))


@dataclass(frozen=True)
class Channels:
    """Outputs exist with all their weights or with none. The density is the share of outputs that exist."""

    whole: ClassVar[bool] = True
    even: ClassVar[bool] = False
    limit: ClassVar[None] = None
    least_salient: ClassVar[float] = 0.0
    signals: ClassVar[frozenset[AnySignal]] = frozenset()

    def tiles(self, spec: LayerSpec) -> Tiles:
        """The weights of one output."""
        return _outputs(spec, self)


_LEAVE_OUT = "leave the layer dense with exclude="


def _matrix(spec: LayerSpec) -> tuple[int, int, int]:
    """Rows, columns and taps of a layer; a vector is one row."""
    rows, columns, *taps = spec.matrix if len(spec.matrix) > 1 else (1, *spec.matrix)
    return rows, columns, prod(taps)


def _outputs(spec: LayerSpec, constraint: object) -> Tiles:
    """One tile for each output."""
    rows, columns, taps = _matrix(spec)
    if not spec.transposed:
        return Tiles((rows, columns, taps), (1, columns, taps))
    if spec.groups > 1:
        raise ValueError(
            f"{spec.name} is transposed and has groups, where {constraint!r} does not know the outputs: {_LEAVE_OUT}"
        )
    return Tiles((rows, columns, taps), (rows, 1, taps))
