"""Which layers the sparse kernels cover, and the geometry that the kernels see."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from rewire._torch import FORWARD_METHODS, parameters_of
from rewire.kernels.geometry import Geometry, Pair
from rewire.model.kinds import has_nf
from rewire.nn.tensor_functions import METADATA, function_name

PACKABLE = (nn.Linear, nn.Conv1d, nn.Conv2d)
_CONV_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_CONV_DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}


def no_kernel_reason(module: nn.Module, weight: Tensor) -> str:
    """Why a layer cannot be packed; an empty string if it can.

    >>> no_kernel_reason(nn.Linear(2, 2), torch.zeros(2, 2, dtype=torch.float16))
    'no kernel for torch.float16'
    """
    if is_inputs_first(module):
        if not _forward_is_addmm(module):
            return f"no kernel for the forward of {type(module).__name__}"
    elif not isinstance(module, PACKABLE) and type(module) is not nn.MultiheadAttention:
        return f"no kernel for {type(module).__name__}"
    if weight.device.type not in ("cpu", "meta"):
        return f"no kernel for {weight.device.type}"
    if weight.dtype not in (torch.float32, torch.float64):
        return f"no kernel for {weight.dtype}"
    if isinstance(module, (nn.Conv1d, nn.Conv2d)) and module.padding_mode != "zeros":
        return f"no kernel for padding_mode={module.padding_mode!r}"
    if isinstance(module, PACKABLE) and has_own_forward(type(module)) and not _forward_calls_kernel(module):
        return f"no kernel for the forward of {type(module).__name__}"
    return ""


def packable_weight(module: nn.Module) -> str:
    """The name of the parameter that can be packed, of a module whose type has a kernel."""
    return "in_proj_weight" if isinstance(module, nn.MultiheadAttention) else "weight"


def is_inputs_first(module: nn.Module) -> bool:
    """Whether a module is GPT-2's ``Conv1D``: a linear layer whose weight has the shape (inputs, outputs)."""
    return any(kind.__name__ == "Conv1D" for kind in type(module).__mro__) and has_nf(module)


def _forward_is_addmm(module: nn.Module) -> bool:
    """Whether a forward uses its weight only in ``torch.addmm(bias, x, weight)``."""
    try:
        graph = fx.Tracer().trace(module)
    except Exception:  # tracing runs foreign code on proxies, which may raise anything
        return False
    reads = [node for node in graph.nodes if node.op == "get_attr" and node.target == "weight"]
    users = [user for node in reads for user in node.users]
    products = [user for user in users if user.target is torch.addmm and len(user.args) == 3 and not user.kwargs]
    biases = [getattr(product.args[0], "target", None) for product in products]
    return len(users) == 1 and biases == ["bias"] and products[0].args[2] is reads[0]


def has_torch_base(kind: type[nn.Module]) -> bool:
    """Whether a class derives from one of the torch layers that can be packed."""
    return issubclass(kind, PACKABLE)


def torch_base(kind: type[nn.Module]) -> type[nn.Module]:
    """``nn.Linear``, ``nn.Conv1d`` or ``nn.Conv2d``, of which a class is a subclass."""
    return next(base for base in PACKABLE if issubclass(kind, base))


def has_own_forward(kind: type[nn.Module]) -> bool:
    """Whether a subclass of a torch layer computes its output in code of its own.

    >>> class Renamed(nn.Linear):
    ...     pass
    >>> has_own_forward(Renamed)
    False
    """
    return any(getattr(kind, name, None) is not getattr(torch_base(kind), name, None) for name in FORWARD_METHODS)


def _forward_calls_kernel(module: nn.Module) -> bool:
    """Whether a forward uses the weight only as that of ``F.linear`` or ``F.conv2d`` with the layer's own settings.

    The layer is traced alone. If that does not tell, because the forward depends on the size of its input for instance,
    it is called once with a small input. Should it use the weight otherwise for inputs of other sizes, the packed layer
    writes the dense weight out there.
    """
    # A copy that shares the parameters: a forward may change other attributes.
    layer = copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})
    with torch.random.fork_rng(devices=[]):
        return _trace_shows_kernel(layer) or _call_runs_kernel(layer)


def _trace_shows_kernel(layer: nn.Module) -> bool:
    try:
        graph = fx.Tracer().trace(layer)
    except Exception:  # tracing runs foreign code on proxies, which may raise anything
        return False
    reads = [node for node in graph.nodes if node.op == "get_attr" and node.target == "weight"]
    return bool(reads) and all(is_kernel_call(user, node, layer) for node in reads for user in node.users)


class _WeightUses(TorchFunctionMode):
    """Watches what is done with the weight of a layer; asking for its shape or type is no use."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.weight = layer, parameters_of(layer)["weight"]
        self.kernel_calls = self.other_uses = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count the call, if the weight is among its arguments, and let it happen."""
        kwargs = kwargs or {}
        occurrences = sum(argument is self.weight for argument in (*args, *kwargs.values()))
        if occurrences and function_name(func) not in METADATA:
            arguments = call_arguments(args, kwargs)
            is_kernel = occurrences == 1 and arguments.get("weight") is self.weight
            if is_kernel and is_call_of_layer(func, arguments, self.layer):
                self.kernel_calls += 1
            else:
                self.other_uses += 1
        return func(*args, **kwargs)


def _call_runs_kernel(layer: nn.Module) -> bool:
    """Whether a call of the layer with a small input uses the weight as ``_forward_calls_kernel`` asks for."""
    weight = parameters_of(layer)["weight"]
    assert weight is not None
    if isinstance(layer, nn.Linear):
        shape: tuple[int, ...] = (2, layer.in_features)
    else:
        assert isinstance(layer, (nn.Conv1d, nn.Conv2d))
        sizes = zip(layer.kernel_size, layer.dilation, layer.stride, strict=True)
        shape = (1, layer.in_channels, *(2 * kernel * dilation + stride for kernel, dilation, stride in sizes))
    uses = _WeightUses(layer)
    try:
        with torch.no_grad(), uses:
            layer.forward(torch.zeros(shape, dtype=weight.dtype, device=weight.device))
    except Exception:  # foreign code, which may need another input
        return False
    return uses.kernel_calls > 0 and not uses.other_uses


def is_kernel_call(call: fx.Node, weight: fx.Node, layer: nn.Module) -> bool:
    """Whether a node of a traced graph computes what the layer computes, with ``weight`` as the node of its weight."""
    if call.op != "call_function" or sum(argument is weight for argument in call.all_input_nodes) != 1:
        return False
    arguments = call_arguments(call.args, call.kwargs)
    return arguments.get("weight") is weight and is_call_of_layer(call.target, arguments, layer)


def is_call_of_layer(function: Any, arguments: dict[str, Any], layer: object) -> bool:
    """Whether a function is ``F.linear``, ``F.conv1d`` or ``F.conv2d`` with the stride, padding ... of the layer."""
    if isinstance(layer, (nn.Linear, nn.MultiheadAttention)):
        return function is F.linear
    if not isinstance(layer, PACKABLE):
        return False
    assert isinstance(layer, (nn.Conv1d, nn.Conv2d))
    if function is not (F.conv1d if isinstance(layer, nn.Conv1d) else F.conv2d):
        return False
    settings = {name: arguments.get(name, default) for name, default in _CONV_DEFAULTS.items()}
    return all(_as_tuple(settings[name], layer) == _as_tuple(getattr(layer, name), layer) for name in settings)


def call_arguments(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``F.linear`` or a convolution by name, however they were given."""
    return dict(zip(_CONV_ARGUMENTS, args, strict=False)) | kwargs


def _as_tuple(size: Any, layer: nn.Conv1d | nn.Conv2d) -> Any:
    """A stride, padding or dilation with one number for each axis; ``"same"`` and ``"valid"`` stay as they are."""
    if isinstance(size, int):
        return (size,) * len(layer.kernel_size)
    return size if isinstance(size, str) else tuple(size)


def geometry_of(module: nn.Module, shape: torch.Size) -> Geometry:
    """Shape, stride, padding, dilation and groups of a layer as the kernels see them.

    An ``nn.Linear`` is a 1x1 convolution of one pixel, an ``nn.Conv1d`` a convolution of images of height one.

    >>> geometry_of(nn.Conv1d(4, 8, 5, padding="same"), torch.Size([8, 4, 5])).padding
    (0, 2)
    """
    if not isinstance(module, (nn.Conv1d, nn.Conv2d)):  # linear, outputs or inputs first
        return Geometry((shape[0], shape[1], 1, 1))
    padding, _ = _padding(module)
    sizes = [_as_tuple(size, module) for size in (shape[2:], module.stride, padding, module.dilation)]
    if isinstance(module, nn.Conv1d):
        sizes = [(height, *size) for height, size in zip((1, 1, 0, 1), sizes, strict=True)]
    kernel, stride, padding, dilation = sizes
    return Geometry((shape[0], shape[1], *kernel), stride, padding, dilation, module.groups)


def extra_padding_of(module: nn.Module) -> Pair:
    """Rows below and columns to the right that ``padding="same"`` adds to an even kernel, which has no middle.

    >>> extra_padding_of(nn.Conv2d(1, 1, (3, 4), padding="same"))
    (0, 1)
    """
    if isinstance(module, nn.Conv1d):
        return 0, _padding(module)[1][0]
    return _padding(module)[1] if isinstance(module, nn.Conv2d) else (0, 0)


def _padding(module: nn.Conv1d | nn.Conv2d) -> tuple[Any, Any]:
    """Zeros on both sides of every axis, and additional zeros at the end of every axis."""
    if module.padding == "same":
        total = [far * (size - 1) for size, far in zip(module.kernel_size, module.dilation, strict=True)]
        return tuple(zeros // 2 for zeros in total), tuple(zeros % 2 for zeros in total)
    none = (0,) * len(module.kernel_size)
    return (none if module.padding == "valid" else module.padding), none


def pair(size: Any) -> Pair:
    """``(size, size)`` if it is one number for both axes.

    >>> pair(3), pair((1, 2))
    ((3, 3), (1, 2))
    """
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
