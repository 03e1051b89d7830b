"""Views of a dense weight that was written out for a reader: they can be read, and refuse to be written to."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rewire._torch import without_torch_function
from rewire.nn.tensor_functions import first_of, function_name, mapped, writes_to_first

VIEWS = {"__getitem__", "__iter__", "as_strided", "data", "detach", "diagonal", "expand", "expand_as", "flatten", "H"}
VIEWS |= {"mT", "mH", "movedim", "moveaxis", "narrow", "numpy", "permute", "ravel", "real", "reshape", "reshape_as"}
VIEWS |= {"select", "split", "split_with_sizes", "chunk", "tensor_split", "squeeze", "swapaxes", "swapdims", "t", "T"}
VIEWS |= {"transpose", "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as", "hsplit", "vsplit", "adjoint"}
VIEWS |= {"__array__"}


class ReadOnlyView(Tensor):
    """A view of a tensor that nobody else holds, so that what is written to it would be lost."""

    refusal: str

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Views of views refuse too; every other function gets, and returns, plain tensors."""
        kwargs = kwargs or {}
        name = function_name(func)
        view = first_of(ReadOnlyView, (*args, *kwargs.values()))
        if view is not None and writes_to_first(ReadOnlyView, name, args, kwargs):
            raise RuntimeError(view.refusal)
        result = func(*mapped(ReadOnlyView, _plain, args), **mapped(ReadOnlyView, _plain, kwargs))
        return result if view is None else read_only(name, result, view.refusal)


def read_only(name: str, result: Any, refusal: str) -> Any:
    """What a function of this name returned; if that is a view of its argument, one that cannot be written to."""
    if name not in VIEWS:
        return result
    if isinstance(result, np.ndarray):
        result.flags.writeable = False
        return result
    if type(result) is Tensor:
        with without_torch_function():
            view = result.as_subclass(ReadOnlyView)
        view.refusal = refusal
        return view
    if isinstance(result, (tuple, list)):
        return type(result)(read_only(name, part, refusal) for part in result)
    return (read_only(name, part, refusal) for part in result) if name == "__iter__" else result


def _plain(view: Tensor) -> Tensor:
    with without_torch_function():
        return view.as_subclass(torch.Tensor)
