"""The methods by name: each is a composition of parts, and nothing else. No loops, no ifs.

``METHODS`` lists them in the order of tables. A decorator registers each function, with its label there, its colours on
light and on dark pages, and its marker in figures. Colours are Okabe and Ito's, which colour-blind readers tell apart.

Every function takes the same first arguments, so that methods can be exchanged: ``density`` (the share of weights that
exist), ``every`` (optimizer steps between rewirings), ``until`` (the step of the last one), ``fraction`` (the share of
the active weights that moves, at first) and ``start``. Method cards with the details: ``docs/methods/``.
"""

from rewire.core.layer import Signal
from rewire.core.method import Method
from rewire.core.named import Look, NamedMethods
from rewire.core.protocols import Grow
from rewire.parts.allocate import GlobalTop, InPlace, Proportional
from rewire.parts.birth import RandomSign, Tiny
from rewire.parts.density import Alternating, Constant, Cosine, Cubic, Stepwise
from rewire.parts.drop import BelowThreshold, Lowest, SignFlipped
from rewire.parts.grow import AtRandom, Mix, Strongest, StrongestOfSample, growth
from rewire.parts.schedule import Never, Periodic
from rewire.parts.scores import WeightPlusGradient
from rewire.parts.start import AnyStart, start_from

METHODS = NamedMethods()

# GGR with another growth than its own, as the paper's ablation calls them.
GGR_VARIANTS = {
    "growth": {
        "random": Look("GGR SET", "#8a6d3b", "#d6b98c", "P"),
        "gradient": Look("GGR RigL", "#5b4bb7", "#a99cf5", "X"),
    }
}


@METHODS.register("static", label="Static")
def static(
    *, density: float, every: int = 1, until: int | None = None, fraction: float = 0.0, start: AnyStart = "erk"
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
    )


@METHODS.register("gmp", label="GMP")
def gmp(*, density: float, every: int, until: int, fraction: float = 0.0, start: AnyStart = "dense") -> Method:
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
) -> Method:
    """GraNet (Liu et al., 2021): the density falls from ``initial`` network-wide while RigL's growth goes on."""
    schedule = _cosine(every, until, fraction)
    return Method(
        start=start_from(start),
        density=Cubic(max(initial, density), density, begin=0, until=schedule.last),
        schedule=schedule,
        drop=Lowest(scope="network"),
        allocate=InPlace(),
        grow=Strongest(Signal.GRAD),
        birth=Tiny(),
    )


@METHODS.register("acdc", label="AC/DC")
def acdc(*, density: float, every: int, until: int, fraction: float = 0.0, start: AnyStart = "dense") -> Method:
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
    )


@METHODS.register("deepr", label="DeepR")
def deepr(
    *,
    density: float,
    every: int = 1,
    until: int | None = None,
    fraction: float = 1.0,
    start: AnyStart = "uniform",
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
    )


@METHODS.register("snfs", label="SNFS")
def snfs(*, density: float, every: int, until: int, fraction: float = 0.1, start: AnyStart = "uniform") -> Method:
    """SNFS (Dettmers and Zettlemoyer, 2019): weights go where the momentum is largest."""
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=_cosine(every, until, fraction),
        drop=Lowest(),
        allocate=Proportional("momentum"),
        grow=Strongest(Signal.MOMENTUM),
        birth=Tiny(),
    )


@METHODS.register("set", label="SET", colours=("#b87a00", "#f0b429"), marker="o")
def set_(*, density: float, every: int, until: int, fraction: float = 0.1, start: AnyStart = "erk") -> Method:
    """SET (Mocanu et al., 2018): drop the lowest magnitudes of each layer, grow as many in it at random."""
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=_cosine(every, until, fraction),
        drop=Lowest(),
        allocate=InPlace(),
        grow=AtRandom(),
        birth=Tiny(),
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
) -> Method:
    """MEST with elastic mutation (Yuan et al., 2021): as SET, but drop the lowest ``|weight| + balance |gradient|``.

    ``fraction`` moves up to three quarters of ``until``, and half of it after that.
    """
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=Periodic(every, until, Stepwise((fraction, fraction / 2), at=(3 * until // 4,))),
        drop=Lowest(WeightPlusGradient(balance)),
        allocate=InPlace(),
        grow=AtRandom(),
        birth=Tiny(),
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
) -> Method:
    """MEST with a soft memory bound (Yuan et al., 2021): new weights are trained before others are dropped for them.

    Between rewirings the network has ``fraction`` more weights than ``density`` allows, half of it after three quarters
    of ``until``, and none from ``until`` on.
    """
    last = Periodic(every, until, Constant(0.0)).last
    (high, move), (middle, move_less) = _surplus(density, fraction), _surplus(density, fraction / 2)
    return Method(
        start=start_from(start),
        density=Stepwise((high, middle, density), at=(3 * last // 4, last)),
        schedule=Periodic(every, until, Stepwise((move, move_less, 0.0), at=(3 * last // 4, last))),
        drop=Lowest(WeightPlusGradient(balance)),
        allocate=InPlace(),
        grow=AtRandom(),
        birth=Tiny(),
    )


@METHODS.register("rigl", label="RigL", colours=("#2b7fb8", "#6cc0f0"), marker="s")
def rigl(*, density: float, every: int, until: int, fraction: float = 0.1, start: AnyStart = "erk") -> Method:
    """RigL (Evci et al., 2020): as SET, but grow where the gradient is strongest."""
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=_cosine(every, until, fraction),
        drop=Lowest(),
        allocate=InPlace(),
        grow=Strongest(Signal.GRAD),
        birth=Tiny(),
    )


@METHODS.register("set_rigl", label="SET+RigL", colours=("#a3447e", "#e79ac6"), marker="v")
def set_rigl(*, density: float, every: int, until: int, fraction: float = 0.1, start: AnyStart = "erk") -> Method:
    """SET and RigL half and half, within each layer."""
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=_cosine(every, until, fraction),
        drop=Lowest(),
        allocate=InPlace(),
        grow=Mix(Signal.GRAD),
        birth=Tiny(),
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
) -> Method:
    """GSE (Heddes et al., 2024): as RigL, but rank only a random sample of the missing gradients.

    ``ratio``: the size of the sample over the number of weights of the layer.
    """
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=_cosine(every, until, fraction),
        drop=Lowest(),
        allocate=InPlace(),
        grow=StrongestOfSample(Signal.GRAD, ratio),
        birth=Tiny(),
    )


@METHODS.register("dsr", label="DSR", colours=("#00795a", "#2fc797"), marker="^")
def dsr(*, density: float, every: int, until: int, fraction: float = 0.1, start: AnyStart = "erk") -> Method:
    """DSR (Mostafa and Wang, 2019): drop below a global adaptive threshold, grow in proportion to the survivors."""
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=_cosine(every, until, fraction),
        drop=BelowThreshold(),
        allocate=Proportional("survivors"),
        grow=AtRandom(),
        birth=Tiny(),
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
) -> Method:
    """GGR (Parger et al., 2022): freed weights go to the layers that own the largest missing gradients of the network.

    ``growth``: ``"mix"`` (half by gradient, half at random), ``"gradient"`` or ``"random"``. ``sample``: rank only so
    many missing gradients for each weight of a layer, drawn at random; ``None`` ranks all.
    """
    return Method(
        start=start_from(start),
        density=Constant(density),
        schedule=_cosine(every, until, fraction),
        drop=Lowest(),
        allocate=GlobalTop(Signal.GRAD, sample=sample),
        grow=_growth(growth),
        birth=Tiny(),
    )


_growth = growth  # ggr's argument of the same name hides it there


def _cosine(every: int, until: int, fraction: float) -> Periodic:
    """The paper's schedule: the whole fraction at the first rewiring, nothing any more at ``until``."""
    return Periodic(every, until, Cosine(fraction, 0.0, begin=every, until=until))


def _surplus(density: float, share: float) -> tuple[float, float]:
    """A density that is higher by a share, and the fraction to drop from it to come back."""
    high = min(density * (1 + share), 1.0)
    return high, 1 - density / high
