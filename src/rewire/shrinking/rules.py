"""What each ATen operation does to channels and to constants. An operation without a rule keeps all of its inputs.

A rule takes the traversal and a node and returns what is known about the node's result, or ``None`` if it cannot tell.
It may join channels, so that they are kept or removed together, and record that a parameter is sliced with them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from rewire.shrinking.graph import Known, Traversal, arguments, operation, shape
from rewire.shrinking.layers import LAYERS, layer
from rewire.shrinking.values import Value, concatenated

Rule = Callable[[Traversal, fx.Node], Known]

IDENTITY = "clone contiguous detach alias dropout feature_dropout alpha_dropout feature_alpha_dropout"
UNARY = (
    "relu relu6 gelu silu elu celu selu leaky_relu hardswish hardsigmoid hardtanh mish softplus softsign sigmoid tanh "
    "log_sigmoid threshold exp log log1p expm1 sqrt rsqrt square abs neg sin cos erf clamp clamp_min clamp_max "
    "reciprocal sign floor ceil round to _to_copy"
)
BINARY = "add sub mul div maximum minimum pow rsub"
SPATIAL = (
    "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d upsample_nearest1d "
    "upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d"
)
REDUCE = "mean sum amax amin"
MOVE = "flatten permute transpose t squeeze unsqueeze slice select movedim flip"
RESHAPE = "view reshape _unsafe_view unflatten expand repeat"
IGNORED = "_assert_tensor_metadata sym_size _assert_scalar"


def apply(traversal: Traversal, node: fx.Node) -> Known:
    """What is known about the result of an operation; if nothing is, all channels that enter it are kept."""
    name = operation(node)
    if name in IGNORED.split():
        return None
    try:
        known = RULES[name](traversal, node) if name in RULES else None
    except (RuntimeError, TypeError, ValueError, IndexError):  # an overload that the rule does not know
        known = None
    if known is None and name != "getitem":
        traversal.pin_inputs(node)
    return known


def identity(traversal: Traversal, node: fx.Node) -> Known:
    """The input itself; a dropout in training mode is unknown."""
    return None if arguments(node).get("train") else traversal.value_of(node.args[0])


def unary(traversal: Traversal, node: fx.Node) -> Known:
    """A function of each element."""
    value = traversal.value_of(node.args[0])
    if value is None or len(node.all_input_nodes) > 1:
        return None
    return value.with_contents(value.live, _call(node, value.constant.clone(), *node.args[1:]))


def binary(traversal: Traversal, node: fx.Node) -> Known:
    """A function of two elements: the channels of both operands are kept or removed together."""
    rank, (left, right) = len(shape(node)), node.args[:2]
    left_value, right_value = traversal.value_of(left), traversal.value_of(right)
    lead = max((value for value in (left_value, right_value) if value is not None), key=len, default=None)
    if lead is None:
        return None
    dim = _aligned(left if lead is left_value else right, lead.dim, rank)
    operands = [
        _operand(traversal, argument, value, lead, dim, rank)
        for argument, value in ((left, left_value), (right, right_value))
    ]
    if any(operand is None for operand in operands):
        return None
    (left_live, a), (right_live, b) = (operand for operand in operands if operand is not None)
    result = _call(node, a.clone() if isinstance(a, Tensor) else a, b, *node.args[2:])
    live = left_live | right_live
    return Value(dim, lead.channels, live, torch.zeros_like(lead.constant)).with_contents(live, result)


def _operand(
    traversal: Traversal, argument: Any, value: Value | None, lead: Value, dim: int, rank: int
) -> tuple[Tensor, Any] | None:
    """Where one operand is live, and its constants, for each channel of ``lead``; a number stays a number.

    ``x ** 2`` and ``1 - x`` are operations on a number: they do not take a tensor in its place.
    """
    nowhere, zeros = torch.zeros_like(lead.live), torch.zeros_like(lead.constant)
    if not isinstance(argument, fx.Node):
        return nowhere, argument
    own_dim = dim - rank + len(shape(argument))
    width = shape(argument)[own_dim] if own_dim >= 0 else 1
    if value is not None and _aligned(argument, value.dim, rank) == dim and len(value) == len(lead):
        traversal.groups.join(lead.channels, value.channels)
        return value.live, value.constant
    if value is not None:  # its channels are in another dimension, or it has one channel for all: they are kept
        traversal.pinned.append(value.channels)
        return (~nowhere, zeros) if width == 1 else None
    tensor = traversal.exclusive_tensor(argument)
    if tensor is None or (width == len(lead) > 1 and not traversal.is_parameter(tensor[0])):
        return (~nowhere, zeros) if width == 1 else None
    name, data = tensor
    if width > 1:
        traversal.sliced[name, own_dim] = lead.channels
    if data.numel() != width:  # it differs within a channel
        return ~nowhere, zeros
    return nowhere, data.flatten().expand(len(lead))


def batch_norm(traversal: Traversal, node: fx.Node) -> Known:
    """With running statistics: a function of each element, with parameters for each channel."""
    named, value = arguments(node), traversal.value_of(node.args[0])
    if value is None or value.dim != 1 or named["training"] or named["running_mean"] is None:
        return None
    tensors = [traversal.exclusive_tensor(named[name]) for name in ("weight", "bias", "running_mean", "running_var")]
    absent = [named[name] is None for name in ("weight", "bias", "running_mean", "running_var")]
    if any(tensor is None and not none for tensor, none in zip(tensors, absent, strict=True)):
        return None
    for tensor in tensors:
        if tensor is not None:
            traversal.sliced[tensor[0], 0] = value.channels
    weight, bias, mean, variance = (None if tensor is None else tensor[1] for tensor in tensors)
    result = torch.nn.functional.batch_norm(value.constant[None], mean, variance, weight, bias, eps=named["eps"])
    return value.with_contents(value.live, result[0])


def prelu(traversal: Traversal, node: fx.Node) -> Known:
    """A slope for each channel, or one for all."""
    value, slope = traversal.value_of(node.args[0]), traversal.exclusive_tensor(node.args[1])
    if value is None or slope is None or value.dim != 1:
        return None
    if len(slope[1]) > 1:
        traversal.sliced[slope[0], 0] = value.channels
    return value.with_contents(value.live, torch.nn.functional.prelu(value.constant[None], slope[1])[0])


def spatial(traversal: Traversal, node: fx.Node) -> Known:
    """Pooling and resizing: each channel by itself."""
    value, size = traversal.value_of(node.args[0]), shape(_node(node.args[0]))
    dimensions = int(next(letter for letter in operation(node) if letter.isdigit()))
    if value is None or value.dim != len(size) - dimensions - 1:
        return None
    known = _over_feature_map(node, value, size, value.dim)
    return (known, None) if isinstance(node.meta["val"], (tuple, list)) else known


def pad(traversal: Traversal, node: fx.Node) -> Known:
    """Padding of the feature map. A channel stays constant only if the padding has the same value."""
    value, size = traversal.value_of(node.args[0]), shape(_node(node.args[0]))
    padding: Any = node.args[1]
    if value is None or value.dim >= len(size) - len(padding) // 2:  # the channels themselves are padded
        return None
    return _over_feature_map(node, value, size, value.dim)


def reduce(traversal: Traversal, node: fx.Node) -> Known:
    """A mean, sum, maximum or minimum over other dimensions than the channels."""
    value, size, named = traversal.value_of(node.args[0]), shape(_node(node.args[0])), arguments(node)
    if value is None or not named.get("dim"):
        return None
    listed = [named["dim"]] if isinstance(named["dim"], int) else named["dim"]
    reduced = {dim % len(size) for dim in listed}
    if value.dim in reduced or (operation(node) == "sum" and 0 in reduced):  # a sum over a batch depends on its size
        return None
    dim = value.dim if named.get("keepdim") else value.dim - sum(other < value.dim for other in reduced)
    return _over_feature_map(node, value, size, dim)


def _over_feature_map(node: fx.Node, value: Value, size: torch.Size, dim: int) -> Value:
    """What an operation makes of constants, computed by the operation itself on feature maps that hold them.

    A channel whose result is not the same everywhere is live. ``dim`` is where the result has its channels.
    """
    constants, index = torch.unique(value.constant, return_inverse=True)
    maps = constants.view([-1 if i == value.dim else 1 for i in range(len(size))])
    maps = maps.expand([len(constants) if i == value.dim else n for i, n in enumerate(size)])
    results = _call(node, maps.contiguous(), *node.args[1:]).movedim(dim, 0).flatten(1)
    first = results[:, 0]
    uniform = (results - first[:, None]).abs().amax(1) <= 1e-12 * first.abs()
    return replace(value, dim=dim).with_contents(value.live | ~uniform[index], first[index])


def move(traversal: Traversal, node: fx.Node) -> Known:
    """Elements only change places. The operation is applied to a tensor that holds each element's index of channel."""
    value = traversal.value_of(node.args[0])
    if value is None or len(value) == 1 or len(node.all_input_nodes) > 1:
        return None
    size = shape(_node(node.args[0]))
    numbers = torch.arange(len(value)).view([-1 if i == value.dim else 1 for i in range(len(size))])
    moved = node.target(numbers.expand(size).contiguous(), *node.args[1:], **node.kwargs)  # type: ignore[operator]
    for dim in range(moved.dim()):
        source = moved[tuple(slice(None) if i == dim else 0 for i in range(moved.dim()))]
        if bool((moved == source.view([-1 if i == dim else 1 for i in range(moved.dim())])).all()):
            counts = torch.bincount(source, minlength=len(value))
            # Every channel occurs equally often, so the channels that are left after a removal move in the same way.
            return value.gathered(dim, source) if int(counts.min()) == int(counts.max()) > 0 else None
    return None


def reshape(traversal: Traversal, node: fx.Node) -> Known:
    """As ``move``, unless reshapes have to be kept as they are."""
    return None if traversal.keep_reshapes else move(traversal, node)


def cat(traversal: Traversal, node: fx.Node) -> Known:
    """Channels one after the other. A concatenation along another dimension is unknown."""
    inputs: Any = node.args[0]
    dim = arguments(node).get("dim", 0) % len(shape(node))
    values = [traversal.value_of(argument) for argument in inputs]
    if any(value is not None and value.dim != dim for value in values):
        return None
    return concatenated(
        dim,
        [
            value if value is not None else traversal.new_value(dim, shape(argument)[dim], pinned=True)
            for argument, value in zip(inputs, values, strict=True)
        ],
    )


def getitem(traversal: Traversal, node: fx.Node) -> Known:
    """The first of several results is the tensor."""
    known = traversal.values.get(_node(node.args[0]))
    return known[0] if isinstance(known, tuple) and node.args[1] == 0 else None


def _call(node: fx.Node, *args: Any) -> Tensor:
    """The result of a node's operation on other tensors."""
    result = node.target(*args, **node.kwargs)  # type: ignore[operator]
    first: Tensor = result[0] if isinstance(result, tuple) else result
    return first.double()


def _aligned(argument: Any, dim: int, rank: int) -> int:
    """The dimension of the result that a dimension of an argument is broadcast to."""
    return dim + rank - len(shape(_node(argument)))


def _node(argument: Any) -> fx.Node:
    assert isinstance(argument, fx.Node)
    return argument


RULES: dict[str, Rule] = {"batch_norm": batch_norm, "prelu": prelu, "pad": pad, "cat": cat, "getitem": getitem}
for _names, _rule in (
    *((IDENTITY, identity), (UNARY, unary), (BINARY, binary), (SPATIAL, spatial)),
    *((REDUCE, reduce), (MOVE, move), (RESHAPE, reshape), (LAYERS, layer)),
):
    RULES |= dict.fromkeys(_names.split(), _rule)
