"""A network that never changes, densities that fall or alternate, and the earliest methods. No loops, no ifs."""

from rewire.core.layer import Signal
from rewire.core.method import Method
from rewire.core.structure import Constraint
from rewire.methods.registry import METHODS, cosine
from rewire.parts.allocate import InPlace, Proportional
from rewire.parts.birth import RandomSign, Tiny
from rewire.parts.density import Alternating, Constant, Cubic
from rewire.parts.drop import Lowest, SignFlipped
from rewire.parts.grow import AtRandom, Strongest
from rewire.parts.schedule import Never, Periodic
from rewire.parts.start import AnyStart, start_from


@METHODS.register("static", label="Static")
def static(
    *,
    density: float,
    every: int = 1,
    until: int | None = None,
    fraction: float = 0.0,
    start: AnyStart = "erk",
    constraint: Constraint | None = None,
) -> Method:
    """A random sparse network that never changes: the baseline. ``every``, ``until``, ``fraction`` have no effect."""
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=Never(),
        drop=Lowest(),
        allocate=InPlace(),
        grow=AtRandom(),
        birth=Tiny(),
        constraint=constraint,
    )


@METHODS.register("gmp", label="GMP")
def gmp(
    *,
    density: float,
    every: int,
    until: int,
    fraction: float = 0.0,
    start: AnyStart = "dense",
    constraint: Constraint | None = None,
) -> Method:
    """GMP (Zhu and Gupta, 2018): a dense network loses its lowest magnitudes while the density falls to its target.

    Nothing is grown: ``fraction`` is the share that also moves, 0 by default.
    """
    schedule = Periodic(every, until, Constant(fraction))
    return Method(
        start=start_from(start),
        density=Cubic(1.0, density, begin=0, until=schedule.last),
        schedule=schedule,
        drop=Lowest(),
        allocate=InPlace(),
        grow=AtRandom(),
        birth=Tiny(),
        constraint=constraint,
    )


@METHODS.register("granet", label="GraNet")
def granet(
    *,
    density: float,
    every: int,
    until: int,
    fraction: float = 0.5,
    start: AnyStart = "erk",
    initial: float = 0.5,
    constraint: Constraint | None = None,
) -> Method:
    """GraNet (Liu et al., 2021): the density falls from ``initial`` network-wide while RigL's growth goes on."""
    schedule = cosine(every, until, fraction)
    return Method(
        start=start_from(start),
        density=Cubic(max(initial, density), density, begin=0, until=schedule.last),
        schedule=schedule,
        drop=Lowest(scope="network"),
        allocate=InPlace(),
        grow=Strongest(Signal.GRAD),
        birth=Tiny(),
        constraint=constraint,
    )


@METHODS.register("acdc", label="AC/DC")
def acdc(
    *,
    density: float,
    every: int,
    until: int,
    fraction: float = 0.0,
    start: AnyStart = "dense",
    constraint: Constraint | None = None,
) -> Method:
    """AC/DC (Peste et al., 2021): phases of ``every`` steps, dense and sparse in turn; sparse from ``until`` on.

    A sparse phase has the largest weights of the network, a dense one all; ``fraction`` has no effect.
    """
    schedule = Periodic(every, until, Constant(0.0))
    return Method(
        start=start_from(start),
        density=Alternating(1.0, density, every=every, until=schedule.last),
        schedule=schedule,
        drop=Lowest(scope="network"),
        allocate=InPlace(),
        grow=AtRandom(),
        birth=Tiny(),
        constraint=constraint,
    )


@METHODS.register("deepr", label="DeepR")
def deepr(
    *,
    density: float,
    every: int = 1,
    until: int | None = None,
    fraction: float = 1.0,
    start: AnyStart = "uniform",
    constraint: Constraint | None = None,
) -> Method:
    """DeepR (Bellec et al., 2018): drop what changed its sign, grow as many in the layer at random with a random sign.

    What moves is what flipped, so ``fraction`` has no effect. By default at every step.
    """
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=Periodic(every, until, Constant(1.0)),
        drop=SignFlipped(),
        allocate=InPlace(),
        grow=AtRandom(),
        birth=RandomSign(),
        constraint=constraint,
    )


@METHODS.register("snfs", label="SNFS")
def snfs(
    *,
    density: float,
    every: int,
    until: int,
    fraction: float = 0.1,
    start: AnyStart = "uniform",
    constraint: Constraint | None = None,
) -> Method:
    """SNFS (Dettmers and Zettlemoyer, 2019): weights go where the momentum is largest."""
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=cosine(every, until, fraction),
        drop=Lowest(),
        allocate=Proportional("momentum"),
        grow=Strongest(Signal.MOMENTUM),
        birth=Tiny(),
        constraint=constraint,
    )
