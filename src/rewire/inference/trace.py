"""Tracing a model to a graph whose nodes can be fused and lowered."""

import warnings

from torch import fx, nn

from rewire.inference.graph import PackedGraph
from rewire.inference.layers import is_packable
from rewire.inference.nodes import parameter_reads
from rewire.nn.coverage import PACKABLE, is_inputs_first
from rewire.nn.hwcn import add_relu


class PackedTracer(fx.Tracer):
    """Symbolic tracing that records calls of layers and of ``add_relu`` instead of tracing into them."""

    def __init__(self) -> None:
        super().__init__(autowrap_functions=(add_relu,))

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Also subclasses of torch's layers, whatever their forward does: they can be packed, or stay what they are."""
        return isinstance(m, PACKABLE) or is_inputs_first(m) or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> nn.Module:
    """The model as a ``PackedGraph``; with a warning, the model itself if it cannot be traced."""
    try:
        graph = PackedTracer().trace(model)
        traced = PackedGraph(model, graph)
    except Exception as error:  # tracing runs the user's forward on proxies, which may raise anything
        warnings.warn(
            f"the model cannot be traced ({error}): its layers are packed, but batch norm and ReLU are not fused",
            stacklevel=4,
        )
        return model
    for name, _ in parameter_reads(graph):  # of a layer that is never called, a graph module keeps bare parameters
        if is_packable(model.get_submodule(name)):
            traced.set_submodule(name, model.get_submodule(name))
    return traced
