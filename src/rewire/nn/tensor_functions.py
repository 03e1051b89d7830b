"""Functions of torch as ``__torch_function__`` sees them: their names, their arguments, and what they do to those."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from torch import Tensor

Kind = TypeVar("Kind", bound=Tensor)

# Answered from the sizes and the type of a tensor.
METADATA = {"shape", "dtype", "device", "ndim", "layout", "names", "size", "dim", "numel", "nelement", "element_size"}
METADATA |= {"is_floating_point", "is_complex", "is_sparse", "is_cuda", "is_meta", "is_quantized", "is_nested"}
METADATA |= {"__len__", "retains_grad", "get_device", "is_sparse_csr", "is_mkldnn", "is_cpu"}


def function_name(func: Callable[..., Any]) -> str:
    """The name of a function or method, or of the attribute that a getter returns; a setter ends with ``=``.

    >>> import torch
    >>> function_name(torch.Tensor.shape.__get__), function_name(torch.relu)
    ('shape', 'relu')
    """
    name = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__"):
        attribute = getattr(getattr(func, "__self__", None), "__name__", name)
        return attribute if name == "__get__" else f"{attribute}="
    return str(name)


_NOT_IN_PLACE = {"__invert__", "__index__", "__int__"}


def writes_to_first(kind: type[Tensor], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function writes to its first argument, if that is of a kind: by torch's conventions for names."""
    if kwargs.get("out") is not None:
        return first_of(kind, [kwargs["out"]]) is not None
    in_place_operator = name.startswith("__i") and name not in {*_NOT_IN_PLACE, "__iter__"}
    in_place_method = name.endswith("_") and not name.endswith("__")
    by_name = in_place_method or in_place_operator or name.endswith("=") or name == "__setitem__"
    return (by_name or kwargs.get("inplace") is True) and first_of(kind, args[:1] or kwargs.values()) is not None


def first_of(kind: type[Kind], arguments: Iterable[Any]) -> Kind | None:
    """The first tensor of a kind among arguments, also inside of lists and tuples."""
    for argument in arguments:
        if isinstance(argument, kind):
            return argument
        if isinstance(argument, (list, tuple)) and (inside := first_of(kind, argument)) is not None:
            return inside
    return None


def mapped(kind: type[Kind], change: Callable[[Kind], Tensor], arguments: Any) -> Any:
    """Arguments with every tensor of a kind replaced."""
    if isinstance(arguments, kind):
        return change(arguments)
    if isinstance(arguments, dict):
        return {name: mapped(kind, change, argument) for name, argument in arguments.items()}
    if type(arguments) in (list, tuple):
        return type(arguments)(mapped(kind, change, argument) for argument in arguments)
    return arguments
