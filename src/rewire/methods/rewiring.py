"""Methods that move weights: what is dropped, which layer gets it, and where it grows. No loops, no ifs."""

from collections.abc import Sequence

from rewire.core.layer import Signal
from rewire.core.method import Method
from rewire.core.protocols import Grow
from rewire.core.structure import Constraint
from rewire.methods.registry import GGR_VARIANTS, METHODS, cosine, halved
from rewire.parts.allocate import GlobalTop, InPlace, Proportional
from rewire.parts.birth import Tiny
from rewire.parts.constraint import FanIn
from rewire.parts.density import Constant, Linear, Sigmoid, Stepwise, surplus
from rewire.parts.drop import BelowThreshold, Lowest
from rewire.parts.grow import AtRandom, Mix, Strongest, StrongestOfSample
from rewire.parts.grow import growth as growth_from
from rewire.parts.path_growth import ShortPaths
from rewire.parts.schedule import Periodic
from rewire.parts.scores import WeightPlusGradient
from rewire.parts.soft_drop import Percolated, SoftLowest
from rewire.parts.start import AnyStart, start_from

SRIGL_CONSTRAINT = FanIn(least_salient=0.3)


@METHODS.register("set", label="SET", colours=("#b87a00", "#f0b429"), marker="o")
def set_(
    *,
    density: float,
    every: int,
    until: int,
    fraction: float = 0.1,
    start: AnyStart = "erk",
    constraint: Constraint | None = None,
) -> Method:
    """SET (Mocanu et al., 2018): drop the lowest magnitudes of each layer, grow as many in it at random."""
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=cosine(every, until, fraction),
        drop=Lowest(),
        allocate=InPlace(),
        grow=AtRandom(),
        birth=Tiny(),
        constraint=constraint,
    )


@METHODS.register("mest", label="MEST")
def mest(
    *,
    density: float,
    every: int,
    until: int,
    fraction: float = 0.2,
    start: AnyStart = "uniform",
    balance: float = 0.01,
    constraint: Constraint | None = None,
) -> Method:
    """MEST with elastic mutation (Yuan et al., 2021): as SET, but drop the lowest ``|weight| + balance |gradient|``.

    ``fraction`` moves up to three quarters of ``until``, and half of it after that.
    """
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=halved(every, until, fraction),
        drop=Lowest(WeightPlusGradient(balance)),
        allocate=InPlace(),
        grow=AtRandom(),
        birth=Tiny(),
        constraint=constraint,
    )


@METHODS.register("mest_soft", label="MEST soft")
def mest_soft(
    *,
    density: float,
    every: int,
    until: int,
    fraction: float = 0.5,
    start: AnyStart = "uniform",
    balance: float = 0.01,
    constraint: Constraint | None = None,
) -> Method:
    """MEST with a soft memory bound (Yuan et al., 2021): new weights are trained before others are dropped for them.

    Between rewirings the network has ``fraction`` more weights than ``density`` allows, half of it after three quarters
    of ``until``, and none from ``until`` on.
    """
    last = Periodic(every, until, Constant(0.0)).last
    (high, move), (middle, move_less) = surplus(density, fraction), surplus(density, fraction / 2)
    return Method(
        start=start_from(start),
        density=Stepwise((high, middle, density), at=(3 * last // 4, last)),
        schedule=Periodic(every, until, Stepwise((move, move_less, 0.0), at=(3 * last // 4, last))),
        drop=Lowest(WeightPlusGradient(balance)),
        allocate=InPlace(),
        grow=AtRandom(),
        birth=Tiny(),
        constraint=constraint,
    )


@METHODS.register("rigl", label="RigL", colours=("#2b7fb8", "#6cc0f0"), marker="s")
def rigl(
    *,
    density: float,
    every: int,
    until: int,
    fraction: float = 0.1,
    start: AnyStart = "erk",
    constraint: Constraint | None = None,
) -> Method:
    """RigL (Evci et al., 2020): as SET, but grow where the gradient is strongest."""
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=cosine(every, until, fraction),
        drop=Lowest(),
        allocate=InPlace(),
        grow=Strongest(Signal.GRAD),
        birth=Tiny(),
        constraint=constraint,
    )


@METHODS.register("set_rigl", label="SET+RigL", colours=("#a3447e", "#e79ac6"), marker="v")
def set_rigl(
    *,
    density: float,
    every: int,
    until: int,
    fraction: float = 0.1,
    start: AnyStart = "erk",
    constraint: Constraint | None = None,
) -> Method:
    """SET and RigL half and half, within each layer."""
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=cosine(every, until, fraction),
        drop=Lowest(),
        allocate=InPlace(),
        grow=Mix(Signal.GRAD),
        birth=Tiny(),
        constraint=constraint,
    )


@METHODS.register("srigl", label="SRigL")
def srigl(
    *,
    density: float,
    every: int,
    until: int,
    fraction: float = 0.3,
    start: AnyStart = "erk",
    constraint: Constraint | None = SRIGL_CONSTRAINT,
) -> Method:
    """SRigL (Lasby et al., 2024): as RigL, with equally many weights for every neuron; neurons may be emptied.

    ``constraint``: ``FanIn()`` empties none.
    """
    return rigl(density=density, every=every, until=until, fraction=fraction, start=start, constraint=constraint)


@METHODS.register("chts", label="CHTs")
def chts(
    *,
    density: float,
    every: int,
    until: int,
    fraction: float = 0.3,
    start: AnyStart = "uniform",
    initial: float = 0.0,
    chain: Sequence[str] = (),
    constraint: Constraint | None = None,
) -> Method:
    """CHTs (Zhang et al., 2025): drop and grow by chance, weights by magnitude and links by their short paths.

    For linear layers. ``chain``: the layers, in order, whose neurons are emptied if they have no input or no output.
    ``initial``: a higher density to begin with, from which it falls along a sigmoid (CHTss).
    """
    schedule = Periodic(every, until, Constant(fraction))
    return Method(
        start=start_from(start),
        density=Sigmoid(max(initial, density), density, begin=0, until=schedule.last, steepness=12.0),
        schedule=schedule,
        drop=Percolated(SoftLowest(sharpness=Linear(1.0, 3.0, begin=0, until=schedule.last)), tuple(chain)),
        allocate=InPlace(),
        grow=ShortPaths(),
        birth=Tiny(),
        constraint=constraint,
    )


@METHODS.register("gse", label="GSE")
def gse(
    *,
    density: float,
    every: int,
    until: int,
    fraction: float = 0.1,
    start: AnyStart = "er",
    ratio: float = 1.0,
    constraint: Constraint | None = None,
) -> Method:
    """GSE (Heddes et al., 2024): as RigL, but rank only a random sample of the missing gradients.

    ``ratio``: the size of the sample over the number of weights of the layer.
    """
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=cosine(every, until, fraction),
        drop=Lowest(),
        allocate=InPlace(),
        grow=StrongestOfSample(Signal.GRAD, ratio),
        birth=Tiny(),
        constraint=constraint,
    )


@METHODS.register("dsr", label="DSR", colours=("#00795a", "#2fc797"), marker="^")
def dsr(
    *,
    density: float,
    every: int,
    until: int,
    fraction: float = 0.1,
    start: AnyStart = "erk",
    constraint: Constraint | None = None,
) -> Method:
    """DSR (Mostafa and Wang, 2019): drop below a global adaptive threshold, grow in proportion to the survivors."""
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=cosine(every, until, fraction),
        drop=BelowThreshold(),
        allocate=Proportional("survivors"),
        grow=AtRandom(),
        birth=Tiny(),
        constraint=constraint,
    )


@METHODS.register("ggr", label="GGR", colours=("#c2410c", "#ff7f45"), marker="D", variants=GGR_VARIANTS)
def ggr(
    *,
    density: float,
    every: int,
    until: int,
    fraction: float = 0.1,
    start: AnyStart = "erk",
    growth: str | Grow = "mix",
    sample: float | None = None,
    constraint: Constraint | None = None,
) -> Method:
    """GGR (Parger et al., 2022): freed weights go to the layers that own the largest missing gradients of the network.

    ``growth``: ``"mix"`` (half by gradient, half at random), ``"gradient"`` or ``"random"``. ``sample``: rank only so
    many missing gradients for each weight of a layer, drawn at random; ``None`` ranks all.
    """
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=cosine(every, until, fraction),
        drop=Lowest(),
        allocate=GlobalTop(Signal.GRAD, sample=sample),
        grow=growth_from(growth),
        birth=Tiny(),
        constraint=constraint,
    )
