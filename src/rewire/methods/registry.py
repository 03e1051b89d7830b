"""The registry of methods, and what several of them are composed of.

A decorator registers each function, with its label in tables, its colours on light and on dark pages, and its marker in
figures. Colours are Okabe and Ito's, which colour-blind readers tell apart.
"""

from rewire.core.named import Look, NamedMethods
from rewire.parts.density import Constant, Cosine, Stepwise
from rewire.parts.schedule import Periodic

METHODS = NamedMethods()

# GGR with another growth than its own, as the paper's ablation calls them.
GGR_VARIANTS = {
    "growth": {
        "random": Look("GGR SET", "#8a6d3b", "#d6b98c", "P"),
        "gradient": Look("GGR RigL", "#5b4bb7", "#a99cf5", "X"),
    }
}


def cosine(every: int, until: int, fraction: float) -> Periodic:
    """The paper's schedule: the whole fraction at the first rewiring, nothing any more at ``until``."""
    return Periodic(every, until, Cosine(fraction, 0.0, begin=every, until=until))


def halved(every: int, until: int, fraction: float) -> Periodic:
    """MEST's schedule: the whole fraction before three quarters of ``until``, and half of it from then on."""
    Periodic(every, until, Constant(fraction)).last  # noqa: B018  raises if there is no end
    return Periodic(every, until, Stepwise((fraction, fraction / 2), at=(3 * until // 4,)))
