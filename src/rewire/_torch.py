"""Every use of a private name of torch; ``tests/test_torch.py`` notices if torch changes one of them."""

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

# Base classes that torch does not export, for isinstance.
CONVOLUTION = nn.modules.conv._ConvNd
BATCH_NORM = nn.modules.batchnorm._BatchNorm
INSTANCE_NORM = nn.modules.instancenorm._InstanceNorm
CHANNEL_NORM = nn.modules.batchnorm._NormBase  # batch norm and instance norm
DROPOUT = nn.modules.dropout._DropoutNd
POOLING: tuple[type[nn.Module], ...] = (
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
)

# The hooks for all modules; torch changes these dictionaries and never replaces them.
GLOBAL_HOOKS: tuple[dict[int, Any], ...] = (
    nn.modules.module._global_forward_hooks,
    nn.modules.module._global_forward_pre_hooks,
    nn.modules.module._global_backward_hooks,
    nn.modules.module._global_backward_pre_hooks,
)


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """A module's own parameters by name; writing to the dictionary replaces them without further ado."""
    return module._parameters


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """A module's own buffers by name."""
    return module._buffers


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """A module's own submodules by name."""
    return module._modules


def remove_buffer(module: nn.Module, name: str) -> None:
    """Remove a buffer, if it is there, and what torch remembers about it."""
    module._buffers.pop(name, None)
    module._non_persistent_buffers_set.discard(name)


def remove_load_hook(module: nn.Module, function: Callable[..., None]) -> None:
    """Remove a function that ``register_load_state_dict_pre_hook`` registered, also from a copy of the module."""
    hooks = module._load_state_dict_pre_hooks
    for key in [key for key, hook in hooks.items() if getattr(hook, "hook", hook) is function]:
        del hooks[key]


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether a hook sees what goes into this module or comes out of it in the forward pass."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def has_own_hooks(module: nn.Module) -> bool:
    """Whether a hook of this module sees what goes in or comes out, or its gradient."""
    return has_forward_hooks(module) or bool(module._backward_hooks or module._backward_pre_hooks)


def has_hooks(module: nn.Module) -> bool:
    """Whether a hook of this module, or one for all modules, sees what goes in or comes out, or its gradient."""
    return has_own_hooks(module) or any(GLOBAL_HOOKS)


def is_intercepted(module: nn.Module) -> bool:
    """Whether a call does more than the class's ``forward``: hooks, or a ``forward`` put on this one module."""
    return has_hooks(module) or "forward" in module.__dict__


def forward_pre_hooks(module: nn.Module) -> dict[Any, Any]:
    """The functions that are called before ``forward``, by key; those that torch registers have numbers."""
    return module._forward_pre_hooks


def state_dict_pre_hooks(module: nn.Module) -> dict[Any, Any]:
    """The functions that are called before ``state_dict``, by key."""
    return module._state_dict_pre_hooks


def load_post_hooks(module: nn.Module) -> dict[Any, Any]:
    """The functions that are called after ``load_state_dict``, by key."""
    return module._load_state_dict_post_hooks


def version(tensor: Tensor) -> tuple[int, int]:
    """The identity of a tensor and its count of in-place writes: equal until somebody writes to it.

    Writes through ``tensor.data`` are not counted.
    """
    return id(tensor), tensor._version


def write_count(tensor: Tensor) -> int:
    """How often a tensor was written to in place; -1 for one made in inference mode, where torch does not count."""
    return -1 if tensor.is_inference() else tensor._version


def call_first(parameter: nn.Parameter, handle: RemovableHandle) -> None:
    """Let a hook of ``Tensor.register_hook`` see the gradient before all other hooks that are there now change it."""
    hooks: dict[int, Any] = parameter._backward_hooks  # type: ignore[assignment]
    for key in [key for key in hooks if key != handle.id]:
        hooks[key] = hooks.pop(key)


def call_with_output_gradient(y: Tensor, function: Callable[[Tensor], None]) -> None:
    """Call a function with the gradient of ``y`` as its operation gets it: after all hooks of ``y``.

    Code that is compiled cannot have such hooks; there, hooks that ``y`` gets later come later.
    """
    node = None if torch.compiler.is_compiling() else y.grad_fn
    if node is None:
        y.register_hook(function)
    else:
        node.register_prehook(lambda grads: None if grads[0] is None else function(grads[0]))


def call_after_accumulation(parameter: Tensor, method: Callable[..., object], *arguments: object) -> RemovableHandle:
    """Call a method whenever a gradient was accumulated into a parameter, as long as the object of the method lives.

    The object is held weakly. The garbage collector does not see what these hooks of a tensor refer to, so an object
    that refers to the tensor would stay in memory forever, and the model with it.
    """
    reference = weakref.WeakMethod(method)

    def hook(_parameter: Tensor) -> None:
        if (living := reference()) is not None:
            living(*arguments)

    handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(never_compiled(hook))
    return handle


# The methods of a layer that compute its output.
FORWARD_METHODS = ("forward", "_conv_forward")


def without_torch_function() -> Any:
    """A context in which tensor subclasses are plain tensors: their ``__torch_function__`` is not called."""
    return torch._C.DisableTorchFunctionSubclass()


def handing_over_inner_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a function of ``torch.nn.functional`` that calls ``__torch_function__`` for its inner calls only."""
    assert isinstance(function, FunctionType)
    names = function.__globals__ | {"has_torch_function": lambda _tensors: False}
    inner = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    inner.__kwdefaults__ = function.__kwdefaults__
    return inner


def running_backward_pass() -> int:
    """The number of the backward pass that is running, -1 if none is; one inside of another has its own."""
    return torch._C._current_graph_task_id()


def differentiable_once(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A decorator for the backward of an autograd function: differentiating its results raises.

    torch's own ``once_differentiable`` lets results pass as constants where no gradient that comes in needs a gradient
    itself. The second derivative would be silently zero then, as for a gradient penalty on the sum of a ReLU network.
    """

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        with torch.no_grad():
            results = backward(ctx, *grads)
        if not torch.is_grad_enabled():  # torch enables it in a backward pass for ``create_graph=True`` only
            return results
        raise_later: Any = torch._C._functions.DelayedError(_NO_SECOND_DERIVATIVE.encode(), len(results))
        raising: tuple[Any, ...] = raise_later(*[r if r is None else r.detach().requires_grad_() for r in results])
        return raising

    return wrapper


_NO_SECOND_DERIVATIVE = (
    "packed layers have no second derivatives: a loss that depends on gradients, such as a gradient penalty, cannot be "
    'differentiated. Train this model with sparsify(..., store="masked")'
)


def is_dtensor(tensor: object) -> bool:
    """Whether a tensor is a DTensor; the module that defines them need not be imported to know."""
    return hasattr(tensor, "_local_tensor")


def local_shard(tensor: Tensor) -> Tensor:
    """The shard of a DTensor in this process, sharing its memory; a plain tensor is its own shard."""
    shard: Tensor = getattr(tensor, "_local_tensor", tensor)
    return shard


def inside_compiled(model: nn.Module) -> nn.Module | None:
    """The module that ``torch.compile`` wrapped, if this is such a wrapper."""
    return model._modules.get("_orig_mod")


Hook = TypeVar("Hook", bound=Callable[..., Any])


def never_compiled(hook: Hook) -> Hook:
    """A hook that runs as it is where ``torch.compile`` traces the code that calls it, such as ``optimizer.step``."""
    uncompiled: Hook = torch.compiler.disable(hook)
    return uncompiled


def calling_frames(depth: int) -> Iterator[FrameType]:
    """The frames on the stack from the ``depth``-th caller on, without those of functions that disable compilation."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if not str(frame.f_globals.get("__name__")).startswith("torch._dynamo."):
            yield frame
        frame = frame.f_back


def is_traced() -> bool:
    """Whether ``torch.compile`` or ``torch.jit.trace`` is recording operations."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def is_exporting() -> bool:
    """Whether ``torch.export`` is recording operations.

    ``torch.compiler.is_exporting`` is always true in code that ``torch.compile`` of torch 2.10 traces.
    """
    return torch.compiler._is_exporting_flag


def ignore_buffers(wrapper: DistributedDataParallel, names: set[str]) -> None:
    """Let DDP no longer broadcast these buffers before every forward pass."""
    wrapper.parameters_to_ignore |= names
    wrapper._assign_modules_buffers()


def ignore_in_ddp(model: nn.Module, names: set[str]) -> None:
    """Let DDP leave out these parameters and buffers, given by their full names, when it wraps the model later."""
    already: set[str] = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, already | names)


def reduced_by_ddp(wrapper: DistributedDataParallel) -> set[int]:
    """The ids of the parameters whose gradients DDP reduces."""
    return {id(parameter) for parameter in wrapper._module_parameters}


def call_after_backward(function: Callable[[], None]) -> None:
    """Call a function at the end of the backward pass that is running, before ``backward`` returns."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def wrapped_by_ddp(wrapper: Any) -> nn.Module | None:
    """The model inside a DDP wrapper, which may not be complete yet."""
    module: nn.Module | None = wrapper.__dict__.get("_modules", {}).get("module")
    return module


def semi_structured_arrays(dense: Tensor) -> tuple[Tensor, Tensor]:
    """The compressed values and the metadata of a 2:4 matrix, as the CUTLASS kernels read them; also on the CPU."""
    from torch.sparse._semi_structured_conversions import sparse_semi_structured_from_dense_cutlass

    values, metadata = sparse_semi_structured_from_dense_cutlass(dense)
    return values, metadata


def from_semi_structured(values: Tensor, metadata: Tensor) -> Tensor:
    """The matrix of ``semi_structured_arrays``."""
    from torch.sparse._semi_structured_conversions import sparse_semi_structured_to_dense_cutlass

    dense: Tensor = sparse_semi_structured_to_dense_cutlass(values, metadata)
    return dense
