"""The types of modules whose weights can be sparse: one table, which ``rewire.register`` extends.

A type is looked up along the method resolution order, so a subclass has the weights of its base (``fully_shard`` and
parametrizations change a module's class to a subclass). Types of other packages are recognised by their names: none
of them is imported.
"""

import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rewire._torch import CONVOLUTION, parameters_of
from rewire.model.layouts import Dimensions, Dims, Layout, layout_of

Layouts = dict[str, Layout]  # by the name of the parameter

ROWS_ARE_OUTPUTS = Dimensions.of(inputs=1, outputs=0)
ROWS_ARE_INPUTS = Dimensions.of(inputs=0, outputs=1)
STACK_OF_OUTPUTS = Dimensions.of(stack=0, outputs=1, inputs=2)
STACK_OF_INPUTS = Dimensions.of(stack=0, inputs=1, outputs=2)

RECURRENT = "recurrent: sparse only if include= names it or its type"
ROUTER = "chooses the experts: sparse only if include= names it or its type"

_registered: dict[type[nn.Module], dict[str, Dimensions]] = {}


def register(
    module_type: type[nn.Module], *, weight: str = "weight", inputs: Dims, outputs: Dims, stack: int | None = None
) -> None:
    """Tell Rewire which parameter of a module type multiplies, so that ``sparsify`` makes it sparse.

    ``inputs`` and ``outputs`` are dimensions of the parameter, or tuples of neighbouring ones; ``stack`` is a leading
    dimension that counts matrices which do not share inputs and outputs, such as experts. Dimensions after these are
    the taps of a kernel. Call it once for each parameter, before ``sparsify``; subclasses are included.

    >>> class Projection(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.w = nn.Parameter(torch.randn(4, 6))
    ...
    ...     def forward(self, x):
    ...         return x @ self.w
    >>> register(Projection, weight="w", inputs=0, outputs=1)
    >>> weights_of(Projection())["w"].transposed
    True
    """
    if not (isinstance(module_type, type) and issubclass(module_type, nn.Module)):
        raise TypeError(f"register takes a module type (a subclass of torch.nn.Module), not {module_type!r}")
    if not isinstance(weight, str):
        raise TypeError(f"weight= is the name of a parameter, not {weight!r}")
    _registered.setdefault(module_type, {})[weight] = Dimensions.of(inputs, outputs, stack)


def weights_of(module: nn.Module) -> Layouts:
    """The parameters of a module that can be sparse. One that is not in ``_parameters`` is computed from others."""
    layouts: Layouts = {}
    for kind in reversed(type(module).__mro__):
        if kind in _BUILT_IN:
            layouts |= _BUILT_IN[kind](module)
        elif not layouts:
            layouts |= _by_name(kind, module)
        for name, dimensions in _registered.get(kind, {}).items():
            parameter = parameters_of(module).get(name)
            if parameter is not None:
                layouts[name] = _registered_layout(module, name, parameter, dimensions)
            elif name not in parameters_of(module):
                layouts[name] = _COMPUTED
    return layouts


def dense_shape(module: nn.Module, parameter: Tensor) -> torch.Size:
    """The shape of a parameter; of a packed weight, which is a list of values, the shape that it has when dense."""
    is_weight = parameters_of(module).get(getattr(module, "weight_name", "weight")) is parameter
    return torch.Size(getattr(module, "dense_shape", parameter.shape) if is_weight else parameter.shape)


def is_conv_or_linear(module: nn.Module) -> bool:
    """Whether a module computes with one weight called ``weight`` and nothing else, as these torch types do."""
    return isinstance(module, (nn.Linear, CONVOLUTION))


_COMPUTED = Layout(torch.Size())  # of a parameter that is not there


def _registered_layout(module: nn.Module, name: str, parameter: Tensor, dimensions: Dimensions) -> Layout:
    shape = _shape(module, parameter)
    if not is_lazy(parameter) and len(shape) < dimensions.count:
        raise ValueError(
            f"{type(module).__name__}.{name} has shape {tuple(shape)}, but was registered with "
            f"inputs={dimensions.inputs}, outputs={dimensions.outputs}, stack={dimensions.stack}"
        )
    return layout_of(shape, dimensions) if shape else _COMPUTED


def _shape(module: nn.Module, parameter: Tensor) -> torch.Size:
    if is_lazy(parameter):
        return torch.Size()  # of a lazy module, which sparsify refuses
    return dense_shape(module, parameter)


def _linear(module: nn.Module) -> Layouts:
    weight = parameters_of(module).get("weight")
    return {"weight": _COMPUTED if weight is None else Layout(_shape(module, weight))}


def _convolution(module: nn.Module) -> Layouts:
    weight = parameters_of(module).get("weight")
    if weight is None:
        return {"weight": _COMPUTED}
    assert isinstance(module, CONVOLUTION)
    return {"weight": Layout(_shape(module, weight), module.groups, module.transposed)}


def _attention(module: nn.Module) -> Layouts:
    """One layer for the three projections if they are one parameter, else one for each."""
    return _matching(module, "in_proj_weight", "[qkv]_proj_weight")


def _recurrent(module: nn.Module) -> Layouts:
    return _matching(module, "weight_*", on_request=RECURRENT)


def _bilinear(module: nn.Module) -> Layouts:
    """``(outputs, first inputs, second inputs)``: the second inputs count like the taps of a kernel."""
    return _matching(module, "weight")


_BUILT_IN: dict[type, Callable[[nn.Module], Layouts]] = {
    nn.Linear: _linear,
    CONVOLUTION: _convolution,
    nn.MultiheadAttention: _attention,
    nn.Bilinear: _bilinear,
    nn.modules.rnn.RNNBase: _recurrent,
    nn.modules.rnn.RNNCellBase: _recurrent,
}


def _matching(
    module: nn.Module, *globs: str, dimensions: Dimensions = ROWS_ARE_OUTPUTS, on_request: str = ""
) -> Layouts:
    """The parameters of these names with at least the dimensions that are spoken of; biases have fewer."""
    return {
        name: layout_of(_shape(module, parameter), dimensions, on_request=on_request)
        for name, parameter in parameters_of(module).items()
        if parameter is not None
        and len(_shape(module, parameter)) >= dimensions.count
        and any(fnmatchcase(name, glob) for glob in globs)
    }


# Types of other packages: the name of the class, where it is defined, its parameters and their dimensions.


def _parameters(*globs: str, dimensions: Dimensions = ROWS_ARE_OUTPUTS, on_request: str = "") -> Callable[..., Layouts]:
    return lambda module: _matching(module, *globs, dimensions=dimensions, on_request=on_request)


def _experts(module: nn.Module) -> Layouts:
    """Experts of transformers in one parameter; the class says whether inputs come before outputs."""
    transposed = getattr(module, "is_transposed", None)
    if transposed is None:
        return {}
    return _matching(module, "*_proj", dimensions=STACK_OF_INPUTS if transposed else STACK_OF_OUTPUTS)


def _dbrx(module: nn.Module) -> Layouts:
    """The matrices of all experts below each other, without a dimension of their own."""
    experts = int(module.moe_num_experts)  # type: ignore[arg-type]
    shapes = {name: parameter.shape for name, parameter in parameters_of(module).items() if parameter is not None}
    return {n: Layout(shapes[n], experts, n == "w2", experts) for n in ("w1", "v1", "w2") if n in shapes}


def _conditional(module: nn.Module) -> Layouts:
    """CondConv2d of timm: a flattened convolution weight in each row, which are mixed for each example."""
    weight, kernel = parameters_of(module).get("weight"), getattr(module, "weight_shape", None)
    experts, groups = getattr(module, "num_experts", 0), getattr(module, "groups", 1)
    if weight is None or kernel is None or weight.shape != (experts, math.prod(kernel)):
        return {}
    rows, columns, *taps = kernel
    return {"weight": Layout(torch.Size([experts * rows, columns, *taps]), experts * groups, False, experts)}


_HEADS_OUT = Dimensions.of(inputs=0, outputs=(1, 2))
_HEADS_IN = Dimensions.of(outputs=0, inputs=(1, 2))

# The first entry whose globs match decides. A class is looked for in its own package only, except for names that are
# copied from repository to repository.
_NAMED: tuple[tuple[str, str, Callable[[nn.Module], Layouts]], ...] = (
    (
        "*",
        "Conv1D",
        lambda module: _parameters("weight", dimensions=ROWS_ARE_INPUTS)(module) if has_nf(module) else {},
    ),
    ("transformers*", "Llama4TextExperts", _parameters("*_proj", dimensions=STACK_OF_INPUTS)),
    ("transformers*", "JetMoeParallelExperts", _parameters("weight", dimensions=STACK_OF_OUTPUTS)),
    ("transformers*", "InklingSharedExperts", _parameters("*_proj", dimensions=STACK_OF_OUTPUTS)),
    ("transformers*", "LongcatFlashExperts", _parameters("*_proj", dimensions=STACK_OF_OUTPUTS)),
    ("transformers*", "Step3p7Experts", _parameters("*_proj", dimensions=STACK_OF_OUTPUTS)),
    ("transformers*", "DbrxExpertGLU", _dbrx),
    ("transformers*", "*Experts", _experts),
    ("transformers*", "*Router", _parameters("weight", on_request=ROUTER)),
    ("transformers*", "*FlexibleLinear", _parameters("weight", dimensions=STACK_OF_OUTPUTS)),
    ("transformers*", "GroupedLinearLayer", _parameters("weight", dimensions=STACK_OF_INPUTS)),
    ("transformers*", "CsmCodebooksHead", _parameters("weight", dimensions=STACK_OF_INPUTS)),
    ("transformers*", "RecurrentGemmaRglru", _parameters("*_gate_weight", dimensions=STACK_OF_INPUTS)),
    ("transformers*", "*MultiModalProjector", _parameters("mm_input_projection_weight", dimensions=ROWS_ARE_INPUTS)),
    ("transformers*", "FunnelRelMultiheadAttention", _parameters("r_kernel", dimensions=_HEADS_OUT)),
    (
        "transformers*",
        "XLNetRelativeAttention",
        lambda m: _matching(m, "[qkvr]", dimensions=_HEADS_OUT) | _matching(m, "o", dimensions=_HEADS_IN),
    ),
    ("*", "CondConv2d", _conditional),
    ("torch_geometric*", "Linear", _parameters("weight")),
    ("torch_geometric*", "HeteroLinear", _parameters("weight", dimensions=STACK_OF_INPUTS)),
)


def has_nf(module: nn.Module) -> bool:
    """GPT-2's ``Conv1D`` has the number of its outputs in ``nf``; convolutions of other packages do not."""
    weight = parameters_of(module).get("weight")
    shape = () if weight is None or is_lazy(weight) else dense_shape(module, weight)
    return len(shape) == 2 and getattr(module, "nf", None) == shape[1]


def _by_name(kind: type, module: nn.Module) -> Mapping[str, Layout]:
    for package, name, layouts in _NAMED:
        if fnmatchcase(kind.__name__, name) and fnmatchcase(kind.__module__, package):
            return layouts(module)
    return {}
