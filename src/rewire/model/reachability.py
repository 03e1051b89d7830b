"""Does a topology let a signal through? A question about units and edges; no data and no forward pass is needed.

The model is traced symbolically and each value of the graph is reduced to one bit per channel: does it depend on the
input? Where the model cannot be traced, or does something whose effect on channels is not known, the answer is
``None``.
"""

import copy
import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from rewire._torch import BATCH_NORM, CONVOLUTION, DROPOUT, INSTANCE_NORM
from rewire.core.layer import LayerSpec
from rewire.model.select import endpoints, units
from rewire.model.state_names import topology_names

REMEDY = "Use a connected start (start='connected-erk') with init='fan_in'."
ALL = torch.ones(1, dtype=torch.bool)  # every channel of a value whose number of channels is not known

_ELEMENTWISE = (
    BATCH_NORM,
    DROPOUT,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
    INSTANCE_NORM,
    nn.Identity,
    nn.Flatten,
    nn.Upsample,
)
_MIXING = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)  # one channel that depends on the input makes all depend on it
_KEEP_CHANNELS = {
    *(F.relu, F.relu6, F.gelu, F.silu, F.elu, F.leaky_relu, F.hardswish, F.hardtanh, F.mish, F.softplus),
    *(torch.relu, torch.sigmoid, torch.tanh, F.sigmoid, F.tanh, F.log_softmax, F.softmax, torch.flatten),
    *(F.dropout, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.max_pool1d, F.avg_pool1d, F.interpolate),
    *("relu", "flatten", "contiguous", "sigmoid", "tanh", "mean", "clone", "float", "view", "reshape"),
}
_JOIN = {operator.add, operator.iadd, operator.sub, operator.mul, torch.add, torch.mul, "add", "add_", "mul"}

Wiring = Mapping[nn.Module, tuple[LayerSpec, Tensor]]  # the sparse layers: their shapes and active positions


class UnknownError(Exception):
    """The graph does something whose effect on channels is not known."""


def cut_layers(model: nn.Module, wiring: Wiring) -> list[str] | None:
    """The layers where the last of the signal ends, if none reaches the output; ``[]`` if some does.

    ``None`` if the model cannot be traced.
    """
    try:
        values, output = _propagate(model, wiring)
    except Exception:  # tracing runs the user's own forward with proxies: whatever it raises, the answer is not known
        return None
    if any(bool(value.any()) for value in output):
        return []
    inside = {name: value for name, value in values.items() if name in {spec.name for spec, _ in wiring.values()}}
    dead = [name for name, (before, after) in inside.items() if bool(before.any()) and not bool(after.any())]
    return dead or list(inside)[:1]


def unreachable_units(model: nn.Module, wiring: Wiring) -> dict[str, tuple[int, int]] | None:
    """Per layer, how many inputs and outputs no signal of the network's input gets to; layers without any left out."""
    try:
        values, _ = _propagate(model, wiring)
    except Exception:
        return None
    names = {spec.name for spec, _ in wiring.values()}
    lost = {n: (int((~before).sum()), int((~after).sum())) for n, (before, after) in values.items() if n in names}
    return {name: counts for name, counts in lost.items() if any(counts)}


def _propagate(model: nn.Module, wiring: Wiring) -> tuple[dict[str, tuple[Tensor, Tensor]], list[Tensor]]:
    """What reaches each layer and what leaves it, by name; and what reaches the outputs."""
    # Tracing runs the user's forward, which may change buffers: it runs on a copy, without touching the global
    # generator. The copy shares what is large and not changed by a forward: the weights and their topology.
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    topology = (tensors[name] for name in topology_names(tensors))
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *topology)}
    with torch.random.fork_rng(devices=[]):
        graph = fx.Tracer().trace(copy.deepcopy(model, shared))
    modules = dict(model.named_modules())
    known: dict[fx.Node, Tensor] = {}
    layers: dict[str, tuple[Tensor, Tensor]] = {}
    for node in graph.nodes:
        inputs = [known[n] for n in node.all_input_nodes]
        if node.op == "placeholder":
            known[node] = ALL
        elif node.op == "output":
            return layers, inputs
        elif node.op == "get_attr":
            known[node] = torch.zeros(1, dtype=torch.bool)  # a constant does not depend on the input
        elif node.op == "call_module":
            module = modules[str(node.target)]
            known[node] = _through_module(module, inputs, wiring)
            if module in wiring:
                spec = wiring[module][0]
                layers[spec.name] = (_widen(inputs[0], units(spec)[0]), known[node])
        else:
            known[node] = _through_function(node.target, node, known)
    raise UnknownError("the graph has no output")


def _through_module(module: nn.Module, inputs: list[Tensor], wiring: Wiring) -> Tensor:
    if module in wiring:
        spec, positions = wiring[module]
        sources, targets = endpoints(spec, positions.cpu())
        reached = torch.zeros(units(spec)[1], dtype=torch.bool)
        reached[targets[_widen(inputs[0], units(spec)[0])[sources]]] = True
        return reached
    if isinstance(module, CONVOLUTION):  # a dense layer mixes the channels of each group
        groups = _widen(inputs[0], module.in_channels).view(module.groups, -1).any(1)
        return groups.repeat_interleave(module.out_channels // module.groups)
    if isinstance(module, nn.Linear):
        return torch.full((module.out_features,), bool(inputs[0].any()))
    if isinstance(module, _MIXING):
        return torch.full((len(inputs[0]),), bool(inputs[0].any()))
    if isinstance(module, _ELEMENTWISE) or type(module).__module__ == "torch.nn.modules.activation":
        if isinstance(module, nn.MultiheadAttention):
            raise UnknownError("attention")
        return inputs[0]
    raise UnknownError(type(module).__name__)


def _through_function(target: Any, node: fx.Node, known: Mapping[fx.Node, Tensor]) -> Tensor:
    inputs = [known[n] for n in node.all_input_nodes]
    if target is torch.cat:
        if (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) != 1:
            raise UnknownError("concatenation of something other than channels")
        joined: Tensor = torch.cat(inputs)
        return joined
    if target in _JOIN:
        return _join(inputs)
    if target in _KEEP_CHANNELS or (target in ("size", getattr, operator.getitem) and inputs[0] is ALL):
        return inputs[0]
    raise UnknownError(str(target))


def _join(inputs: list[Tensor]) -> Tensor:
    """A sum (or product) depends on the input where any of its terms does."""
    length = max(map(len, inputs))
    joined = torch.zeros(length, dtype=torch.bool)
    for value in inputs:
        joined |= value.expand(length)
    return joined


def _widen(value: Tensor, inputs: int) -> Tensor:
    """One bit per input of a layer: flattening an image repeats each channel for every pixel."""
    if len(value) == inputs:
        return value
    if inputs % len(value):
        raise UnknownError(f"{len(value)} channels into {inputs} inputs")
    return value.repeat_interleave(inputs // len(value))
