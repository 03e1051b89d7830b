"""Functions of torch as the modules that compute the same, so that lowering has to know modules only."""

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

SIZE_QUERIES = (getattr, operator.getitem, "size")  # sizes of activations, as arguments of view() and reshape()
_RESHAPES = (torch.flatten, torch.reshape, "flatten", "view", "reshape")
_MEANS = (torch.mean, "mean")
_HEIGHT_AND_WIDTH = ((2, 3), (3, 2), (-2, -1), (-1, -2))
_RELUS: dict[Any, type[nn.Module]] = {F.relu: nn.ReLU, torch.relu: nn.ReLU, "relu": nn.ReLU, F.relu6: nn.ReLU6}
_POOLS: dict[Any, type[nn.Module]] = {
    F.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}


def module_for(node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module | None:
    """The module that computes what a node that calls a function or method computes; ``None`` if there is none.

    A change of shape is an ``nn.Identity``, and so is a dropout that is off.
    """
    if node.target in _RELUS:
        return _RELUS[node.target](*args[1:], **kwargs)
    if node.target in _RESHAPES or (node.target is F.dropout and not _dropout_is_on(*args, **kwargs)):
        return nn.Identity()
    if node.target in _POOLS and len(args) <= 5:  # from the sixth on, the order of the module's arguments is another
        return _POOLS[node.target](*args[1:], **kwargs)
    if node.target in _MEANS and args[0].dim() == 4 and tuple(_mean_axes(*args[1:], **kwargs)) in _HEIGHT_AND_WIDTH:
        return nn.AdaptiveAvgPool2d(1)
    return None


def _dropout_is_on(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> bool:
    """The ``training`` argument of ``F.dropout``, which may be given by position or by name."""
    return training


def _mean_axes(dim: Any, keepdim: bool = False) -> Any:
    """The ``dim`` argument of ``torch.mean``."""
    return dim
