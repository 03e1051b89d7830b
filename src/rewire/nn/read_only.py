"""Views of a dense weight that was written out for a reader: they can be read, and refuse to be written to."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from torch import Tensor

from rewire._torch import without_torch_function
from rewire.nn.tensor_functions import first_of, function_name, writes_to_first


class ReadOnlyView(Tensor):
    """A view of a tensor that nobody else holds, so that what is written to it would be lost."""

    refusal: str

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Views of views refuse too; what shares no memory with them is a plain tensor."""
        kwargs = kwargs or {}
        view = first_of(ReadOnlyView, (*args, *kwargs.values()))
        if view is not None and writes_to_first(ReadOnlyView, function_name(func), args, kwargs):
            raise RuntimeError(view.refusal)
        with without_torch_function():
            result = func(*args, **kwargs)
            return result if view is None else read_only(result, view, view.refusal)


def read_only(result: Any, source: Tensor, refusal: str) -> Any:
    """The result of a function that has read ``source``; where it is a view of the source it cannot be written to."""
    if isinstance(result, np.ndarray):  # torch makes them without copying
        result.flags.writeable = False
    elif isinstance(result, Tensor):
        with without_torch_function():
            if result.untyped_storage().data_ptr() != source.untyped_storage().data_ptr():
                return result
            view = result.as_subclass(ReadOnlyView)
        view.refusal = refusal
        return view
    elif isinstance(result, Iterator):
        return (read_only(part, source, refusal) for part in result)
    elif type(result) in (tuple, list) and result and isinstance(result[0], Tensor):
        return type(result)(read_only(part, source, refusal) for part in result)
    return result
