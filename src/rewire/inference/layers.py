"""The layers of a model that can be packed for inference, and packing them."""

import warnings
from collections import Counter

from torch import fx, nn

from rewire._torch import parameters_of
from rewire.core.dense_ops import take, where_true
from rewire.inference.nodes import parameter_reads
from rewire.nn.coverage import is_kernel_call, no_kernel_reason, packable_weight
from rewire.nn.hwcn import HwcnLinear
from rewire.nn.packed import Packed, pack_shared, weight_parameter
from rewire.nn.replace import use_hwcn_module


def is_packable(module: nn.Module) -> bool:
    """Whether a module is a dense layer that the sparse kernels cover."""
    weight = parameters_of(module).get(packable_weight(module))
    return weight is not None and not isinstance(module, Packed) and not no_kernel_reason(module, weight)


def packable_layers(model: nn.Module) -> list[nn.Module]:
    """The dense layers that can be packed.

    A weight that modules share can be packed if all of them are such layers. A weight that a traced model reads in
    another way than the layer does stays dense, with a warning.
    """
    layers = [module for module in model.modules() if is_packable(module)]
    uses = Counter(id(parameter) for module in model.modules() for parameter in parameters_of(module).values())
    uses_by_layers = Counter(id(weight_parameter(layer)) for layer in layers)
    other_reads = _layers_read_otherwise(model) if isinstance(model, fx.GraphModule) else {}
    if other_reads:
        warnings.warn(
            f"these layers stay dense, because the model reads their weight outside of the layer: "
            f"{', '.join(other_reads.values())}",
            stacklevel=4,
        )
    shared_reads = {id(weight_parameter(layer)) for layer in other_reads}
    weights = {layer: id(weight_parameter(layer)) for layer in layers}
    return [
        layer
        for layer, weight in weights.items()
        if uses[weight] == uses_by_layers[weight] and weight not in shared_reads
    ]


def _layers_read_otherwise(model: fx.GraphModule) -> dict[nn.Module, str]:
    """The layers, with their names, whose weight a graph reads other than by calling what the layer computes."""
    names = {}
    for name, node in parameter_reads(model.graph):
        layer = model.get_submodule(name)
        is_weight = is_packable(layer) and str(node.target).rpartition(".")[2] == packable_weight(layer)
        if is_weight and not all(is_kernel_call(user, node, layer) for user in node.users):
            names[layer] = name
    return names


def pack_nonzeros(layers: list[nn.Module]) -> None:
    """In place: keep only the non-zero weights of layers. Layers that share a weight are packed only together."""
    by_weight: dict[int, list[nn.Module]] = {}
    for layer in layers:
        by_weight.setdefault(id(weight_parameter(layer)), []).append(layer)
    for sharing in by_weight.values():
        weight = weight_parameter(sharing[0]).detach()
        positions = where_true(weight != 0)
        pack_shared(sharing, positions, take(weight, positions))
        weight_parameter(sharing[0]).requires_grad_(False)


def name_packed_layers(model: nn.Module) -> None:
    """In place: tell packed layers their names in the model, for messages."""
    for name, module in model.named_modules():
        if isinstance(module, Packed):
            module.layer_name = name


def use_hwcn_modules(model: nn.Module) -> None:
    """In place: batch norm, ReLU, pooling, flatten and dense linear layers that read and write HWCN layout."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = HwcnLinear
        else:
            use_hwcn_module(module)
