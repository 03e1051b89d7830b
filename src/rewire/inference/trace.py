"""Tracing a model to a graph whose nodes can be fused and lowered."""

import warnings

from torch import fx, nn

from rewire.inference.graph import PackedGraph
from rewire.nn.hwcn import add_relu


class PackedTracer(fx.Tracer):
    """Symbolic tracing that records ``add_relu`` as one call instead of tracing into it."""

    def __init__(self) -> None:
        super().__init__(autowrap_functions=(add_relu,))


def trace(model: nn.Module) -> nn.Module:
    """The model as a ``PackedGraph``; with a warning, the model itself if it cannot be traced."""
    try:
        return PackedGraph(model, PackedTracer().trace(model))
    except Exception as error:  # tracing runs the user's forward on proxies, which may raise anything
        warnings.warn(
            f"the model cannot be traced ({error}): its layers are packed, but batch norm and ReLU are not fused",
            stacklevel=4,
        )
        return model
