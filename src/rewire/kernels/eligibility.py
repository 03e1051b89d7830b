"""Which tensors the native kernels can take, and when they may be called directly."""

import torch
from torch import Tensor

from rewire._torch import is_traced
from rewire.kernels.library import native


def runs_native(*tensors: Tensor) -> bool:
    """Whether the native kernels can take these: float32 on the CPU."""
    return native() is not None and all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)


def is_eager(*tensors: Tensor) -> bool:
    """Whether torch runs eagerly on plain tensors: no compilation, no tracing, no tensor subclasses."""
    return not is_traced() and all(type(t) in (Tensor, torch.nn.Parameter) for t in tensors)
