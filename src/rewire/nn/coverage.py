"""Which layers the sparse kernels cover, and the geometry that the kernels see."""

from typing import Any

import torch
from torch import Tensor, nn

from rewire.kernels.geometry import Geometry

PACKABLE = (nn.Linear, nn.Conv2d)


def no_kernel_reason(module: nn.Module, weight: Tensor) -> str:
    """Why a layer cannot be packed; an empty string if it can.

    >>> no_kernel_reason(nn.Linear(2, 2), torch.zeros(2, 2, dtype=torch.float16))
    'no kernel for torch.float16'
    """
    if type(module) not in PACKABLE:
        return f"no kernel for {type(module).__name__}"
    if weight.device.type not in ("cpu", "meta"):
        return f"no kernel for {weight.device.type}"
    if weight.dtype not in (torch.float32, torch.float64):
        return f"no kernel for {weight.dtype}"
    if isinstance(module, nn.Conv2d) and (module.padding_mode != "zeros" or isinstance(module.padding, str)):
        return f"no kernel for padding={module.padding!r}, padding_mode={module.padding_mode!r}"
    return ""


def geometry_of(module: nn.Module, shape: torch.Size) -> Geometry:
    """Shape, stride, padding, dilation and groups of a layer; an ``nn.Linear`` is a 1x1 convolution of one pixel."""
    if not isinstance(module, nn.Conv2d):
        return Geometry((shape[0], shape[1], 1, 1))
    stride, padding, dilation = (pair(size) for size in (module.stride, module.padding, module.dilation))
    return Geometry((shape[0], shape[1], shape[2], shape[3]), stride, padding, dilation, module.groups)


def pair(size: Any) -> tuple[int, int]:
    """``(size, size)`` if it is one number for both axes.

    >>> pair(3), pair((1, 2))
    ((3, 3), (1, 2))
    """
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
