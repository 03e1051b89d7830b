"""Functions of torch as ``__torch_function__`` sees them: their names, and which of them read no element."""

from collections.abc import Callable
from typing import Any

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
