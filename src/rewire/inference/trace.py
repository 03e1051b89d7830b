"""Tracing a model to a graph whose nodes can be fused and lowered."""

import inspect
import warnings

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError

from rewire._torch import has_hooks, has_own_hooks
from rewire.inference.graph import PackedGraph
from rewire.inference.layers import is_packable
from rewire.inference.nodes import parameter_reads
from rewire.inference.proxy import StrictTracer
from rewire.nn.coverage import PACKABLE, is_inputs_first
from rewire.nn.hwcn import add_relu


class PackedTracer(StrictTracer):
    """Symbolic tracing that records calls of layers and of ``add_relu`` instead of tracing into them."""

    def __init__(self) -> None:
        super().__init__(autowrap_functions=(add_relu,))

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Also subclasses of torch's layers, whatever their forward does: they can be packed, or stay what they are.

        And modules with hooks: those are to see activations, not proxies.
        """
        if isinstance(m, PACKABLE) or is_inputs_first(m) or has_hooks(m):
            return True
        return super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module, example: Tensor | None = None) -> nn.Module:
    """The model as a ``PackedGraph``; with a warning, the model itself if it cannot be traced.

    With an example, the graph must compute from it what the model computes.
    """
    try:
        graph = _graph_of(model)
        traced = PackedGraph(model, graph)
    except Exception as error:  # tracing runs the user's forward on proxies, which may raise anything
        _warn(str(error))
        return model
    if example is not None and not _computes_the_same(traced, model, example):
        _warn("its graph computes something else from the example")
        return model
    for name, _ in parameter_reads(graph):  # of a layer that is never called, a graph module keeps bare parameters
        if is_packable(model.get_submodule(name)):
            traced.set_submodule(name, model.get_submodule(name))
    return traced


def _graph_of(model: nn.Module) -> fx.Graph:
    """The graph of a model. Raises an error if it may compute something else than the model."""
    if has_own_hooks(model) or "forward" in vars(model):
        raise TraceError("the model has hooks of its own or a forward that was replaced")
    for parameter in inspect.signature(model.forward).parameters.values():
        default = parameter.default
        if default is not parameter.empty and (isinstance(default, bool) or not isinstance(default, (int, float, str))):
            raise TraceError(f"its argument {parameter.name} has the default {default}, which forward may ask for")
    tracer = PackedTracer()
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()
        graph = tracer.trace(model)
        draws_random_numbers = not torch.equal(torch.get_rng_state(), state)
    if tracer.refusals:  # the model has caught the error
        raise TraceError(tracer.refusals[0])
    if draws_random_numbers:
        raise TraceError("the model draws random numbers")
    return graph


def _computes_the_same(traced: PackedGraph, model: nn.Module, example: Tensor) -> bool:
    """Whether graph and model have the same output, and change their input in the same way."""
    results = []
    for run in (model, traced.forward):  # forward: not in one native call
        x = example.detach().clone()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            results.append((run(x), x))
    try:
        torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-5, equal_nan=True)
    except AssertionError:
        return False
    except (TypeError, ValueError):  # an output that holds something else than tensors and numbers
        return True
    return True


def _warn(reason: str) -> None:
    warnings.warn(
        f"the model cannot be traced ({reason}): its layers are packed, but batch norm and ReLU are not fused",
        stacklevel=5,
    )
