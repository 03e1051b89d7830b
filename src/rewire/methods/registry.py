"""The registry of methods, and what several of them are composed of.

A decorator registers each function, with its label in tables, its colours on light and on dark pages, and its marker in
figures. Colours are Okabe and Ito's, which colour-blind readers tell apart.
"""

from rewire.core.named import Look, NamedMethods
from rewire.parts.density import Cosine
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


def surplus(density: float, share: float) -> tuple[float, float]:
    """A density that is higher by a share, and the fraction to drop from it to come back."""
    high = min(density * (1 + share), 1.0)
    return high, 1 - density / high
