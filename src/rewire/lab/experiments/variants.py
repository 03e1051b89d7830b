"""Methods that only studies use: GGR with one part exchanged, and the starts that a question needs.

A run names one of them by reference, such as ``rewire.lab.experiments.variants:ggr_layer_scaled``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rewire.core.layer import LayerSpec, Signal
from rewire.core.method import Method
from rewire.methods import dsr, ggr, rigl
from rewire.parts.allocate import GlobalTop
from rewire.parts.apportion import apportion
from rewire.parts.grow import Mix
from rewire.parts.start import AnyStart, Explicit, Scattered

HERE = __name__
STARVED = 0.1  # the share of its weights that a starved layer starts with
STARVED_METHODS = {f"{HERE}:{name}_starved": name for name in ("rigl", "dsr", "ggr")}  # and the methods that they vary


@dataclass(frozen=True)
class Starved:
    """Uniform, but the layer in the middle of the network starts with a tenth of its share."""

    def __call__(self, specs: Sequence[LayerSpec], n: int, least: Sequence[int]) -> list[int]:
        """Counts in proportion to the size of each layer, that of the middle layer divided by ten."""
        sizes = [spec.numel for spec in specs]
        weights = [float(size) for size in sizes]
        weights[starved_layer(len(specs))] *= STARVED
        return apportion(n, weights, sizes, least)


def starved_layer(layers: int) -> int:
    """The index of the layer that ``Starved`` starves."""
    return layers // 2


def ggr_starved(*, density: float, every: int, until: int, fraction: float = 0.1) -> Method:
    """GGR from a start in which one layer is far too sparse."""
    return ggr(density=density, every=every, until=until, fraction=fraction, start=Scattered(Starved()))


def dsr_starved(*, density: float, every: int, until: int, fraction: float = 0.1) -> Method:
    """DSR from a start in which one layer is far too sparse."""
    return dsr(density=density, every=every, until=until, fraction=fraction, start=Scattered(Starved()))


def rigl_starved(*, density: float, every: int, until: int, fraction: float = 0.1) -> Method:
    """RigL from a start in which one layer is far too sparse, and stays so."""
    return rigl(density=density, every=every, until=until, fraction=fraction, start=Scattered(Starved()))


def rigl_first_dense(*, density: float, every: int, until: int, fraction: float = 0.1) -> Method:
    """RigL with a dense first layer and one density for the others, as rigl-torch starts."""
    start = Scattered(Explicit({"0": 1.0}))
    return rigl(density=density, every=every, until=until, fraction=fraction, start=start)


def ggr_layer_scaled(
    *, density: float, every: int, until: int, fraction: float = 0.1, start: AnyStart = "erk"
) -> Method:
    """GGR that ranks gradients after dividing those of each layer by their mean magnitude."""
    method = ggr(density=density, every=every, until=until, fraction=fraction, start=start)
    return replace(method, allocate=GlobalTop(Signal.GRAD, scale="layer"))


def ggr_averaged(*, density: float, every: int, until: int, fraction: float = 0.1, start: AnyStart = "erk") -> Method:
    """GGR that ranks gradients averaged over about ten batches: the momentum of SGD."""
    method = ggr(density=density, every=every, until=until, fraction=fraction, start=start)
    return replace(method, allocate=GlobalTop(Signal.MOMENTUM), grow=Mix(Signal.MOMENTUM))


def ggr_share_25(*, density: float, every: int, until: int, fraction: float = 0.1, start: AnyStart = "erk") -> Method:
    """GGR that grows a quarter of the new weights by gradient."""
    return ggr(density=density, every=every, until=until, fraction=fraction, start=start, growth=Mix(share=0.25))


def ggr_share_75(*, density: float, every: int, until: int, fraction: float = 0.1, start: AnyStart = "erk") -> Method:
    """GGR that grows three quarters of the new weights by gradient."""
    return ggr(density=density, every=every, until=until, fraction=fraction, start=start, growth=Mix(share=0.75))
