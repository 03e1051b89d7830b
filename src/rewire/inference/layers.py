"""The layers of a model that can be packed for inference, and packing them."""

from torch import Tensor, nn

from rewire.core.dense_ops import take, where_true
from rewire.nn.coverage import no_kernel_reason
from rewire.nn.hwcn import HwcnLinear
from rewire.nn.packed import pack_module
from rewire.nn.replace import use_hwcn_module


def packable_layers(model: nn.Module) -> list[nn.Module]:
    """The dense layers that the sparse kernels cover."""
    layers = [module for module in model.modules() if type(module) in (nn.Linear, nn.Conv2d)]
    return [
        layer for layer in layers if "weight" in layer._parameters and not no_kernel_reason(layer, weight_of(layer))
    ]


def weight_of(layer: nn.Module) -> Tensor:
    """The dense weight of a layer."""
    weight = layer._parameters["weight"]
    assert weight is not None
    return weight.detach()


def pack_nonzeros(layer: nn.Module) -> None:
    """In place: keep only the non-zero weights of a layer."""
    positions = where_true(weight_of(layer) != 0)
    packed = pack_module(layer, positions, take(weight_of(layer), positions))
    packed.weight.requires_grad_(False)


def use_hwcn_modules(model: nn.Module) -> None:
    """In place: batch norm, ReLU, pooling, flatten and dense linear layers that read and write HWCN layout."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = HwcnLinear
        else:
            use_hwcn_module(module)
