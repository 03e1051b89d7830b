"""Replacing torch's modules by the HWCN modules that compute the same, and back, by changing a module's class.

Names, parameters, hooks and references to the module stay what they were.
"""

from torch import nn

from rewire.nn.fusion import HwcnSequential
from rewire.nn.hwcn import (
    HwcnAdaptiveAvgPool2d,
    HwcnAvgPool2d,
    HwcnBatchNorm2d,
    HwcnFlatten,
    HwcnMaxPool2d,
    HwcnReLU,
    HwcnReLU6,
)

HWCN_MODULES: dict[type[nn.Module], type[nn.Module]] = {
    nn.Sequential: HwcnSequential,
    nn.ReLU: HwcnReLU,
    nn.ReLU6: HwcnReLU6,
    nn.BatchNorm2d: HwcnBatchNorm2d,
    nn.MaxPool2d: HwcnMaxPool2d,
    nn.AvgPool2d: HwcnAvgPool2d,
    nn.AdaptiveAvgPool2d: HwcnAdaptiveAvgPool2d,
    nn.Flatten: HwcnFlatten,
}
_TORCH_MODULES = {hwcn: torch_class for torch_class, hwcn in HWCN_MODULES.items()}


def use_hwcn_module(module: nn.Module) -> None:
    """In place: make a torch module its HWCN counterpart, if there is one. Subclasses stay what they are.

    >>> relu = nn.ReLU()
    >>> use_hwcn_module(relu)
    >>> relu
    HwcnReLU()
    """
    module.__class__ = HWCN_MODULES.get(type(module), type(module))


def restore_torch_module(module: nn.Module) -> None:
    """In place: make an HWCN module the torch module that it was; other modules stay what they are."""
    module.__class__ = _TORCH_MODULES.get(type(module), type(module))
