"""What each ATen operation does to channels and to constants. What is not listed stops the shrinking, exactly.

A rule takes the walk and the node and returns what is known about its result. It may join channels (they stay or go
together), note that a parameter is sliced with them, or ``walk.stop`` what it cannot follow.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from rewire.shrinking.graph import Known, Walk, arguments, operation, shape
from rewire.shrinking.values import Value, joined

Rule = Callable[[Walk, fx.Node], Known]

SAME = "clone contiguous detach alias dropout feature_dropout alpha_dropout feature_alpha_dropout"
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


def apply(walk: Walk, node: fx.Node) -> Known:
    """What is known about the result of an operation."""
    name = operation(node)
    if name in IGNORED.split():
        return None
    known = RULES[name](walk, node) if name in RULES else None
    if known is None and name != "getitem":
        walk.stop(node)
    return known


def same(walk: Walk, node: fx.Node) -> Known:
    """Nothing happens, unless it is a dropout that is on."""
    return None if arguments(node).get("train") else walk.of(node.args[0])


def unary(walk: Walk, node: fx.Node) -> Known:
    """A function of each element."""
    value = walk.of(node.args[0])
    if value is None or len(node.all_input_nodes) > 1:
        return None
    return value.known(value.live, _call(node, value.constant.clone(), *node.args[1:]))


def binary(walk: Walk, node: fx.Node) -> Known:
    """A function of two elements: channels of both stay or go together."""
    rank, (one, other) = len(shape(node)), node.args[:2]
    values = [walk.of(argument) for argument in (one, other)]
    lead = max((value for value in values if value is not None), key=len, default=None)
    if lead is None:
        return None
    first = one if lead is values[0] else other
    dim = _aligned(first, lead.dim, rank)
    sides = [
        _side(walk, argument, value, lead, dim, rank) for argument, value in zip((one, other), values, strict=True)
    ]
    if any(side is None for side in sides):
        return None
    left, right = (side for side in sides if side is not None)
    return Value(dim, lead.channels, left[0], left[1]).known(
        left[0] | right[0], _call(node, left[1].clone(), right[1], *node.args[2:])
    )


def _side(
    walk: Walk, argument: Any, value: Value | None, lead: Value, dim: int, rank: int
) -> tuple[Tensor, Tensor] | None:
    """Where one side of a binary operation is live, and its constants, for each channel of the other."""
    nothing = torch.zeros_like(lead.live)
    if not isinstance(argument, fx.Node):
        return nothing, torch.full_like(lead.constant, float(argument))
    own = dim - rank + len(shape(argument))
    width = shape(argument)[own] if own >= 0 else 1
    if value is not None and _aligned(argument, value.dim, rank) == dim and len(value) == len(lead):
        walk.classes.join(lead.channels, value.channels)
        return value.live, value.constant
    if value is not None:  # channels elsewhere, or a single one for all: it stays, the others are not constant
        walk.pinned.append(value.channels)
        return (~nothing, torch.zeros_like(lead.constant)) if width == 1 else None
    tensor = walk.owned_tensor(argument)
    if tensor is None or (width == len(lead) > 1 and not walk.is_parameter(tensor[0])):
        return (~nothing, torch.zeros_like(lead.constant)) if width == 1 else None
    if width > 1:
        walk.sliced[tensor[0], own] = lead.channels
    uniform = tensor[1].numel() == width
    flat = tensor[1].flatten().expand(len(lead)) if uniform else torch.zeros_like(lead.constant)
    return (nothing if uniform else ~nothing), flat


def batch_norm(walk: Walk, node: fx.Node) -> Known:
    """With running statistics: a function of each element, with parameters for each channel."""
    given, value = arguments(node), walk.of(node.args[0])
    if value is None or value.dim != 1 or given["training"] or given["running_mean"] is None:
        return None
    tensors = [walk.owned_tensor(given[name]) for name in ("weight", "bias", "running_mean", "running_var")]
    absent = [given[name] is None for name in ("weight", "bias", "running_mean", "running_var")]
    if any(tensor is None and not none for tensor, none in zip(tensors, absent, strict=True)):
        return None
    for tensor in tensors:
        if tensor is not None:
            walk.sliced[tensor[0], 0] = value.channels
    weight, bias, mean, variance = (None if tensor is None else tensor[1] for tensor in tensors)
    result = torch.nn.functional.batch_norm(value.constant[None], mean, variance, weight, bias, eps=given["eps"])
    return value.known(value.live, result[0])


def prelu(walk: Walk, node: fx.Node) -> Known:
    """A slope for each channel, or one for all."""
    value, slope = walk.of(node.args[0]), walk.owned_tensor(node.args[1])
    if value is None or slope is None or value.dim != 1:
        return None
    if len(slope[1]) > 1:
        walk.sliced[slope[0], 0] = value.channels
    return value.known(value.live, torch.nn.functional.prelu(value.constant[None], slope[1])[0])


def spatial(walk: Walk, node: fx.Node) -> Known:
    """Pooling and resizing: each channel by itself."""
    value, size = walk.of(node.args[0]), shape(_node(node.args[0]))
    count = int(next(part for part in operation(node) if part.isdigit()))
    if value is None or value.dim != len(size) - count - 1:
        return None
    known = _over_map(node, value, size, value.dim)
    return (known, None) if isinstance(node.meta["val"], (tuple, list)) else known


def pad(walk: Walk, node: fx.Node) -> Known:
    """Padding of the map; with zeros, a constant is one no longer."""
    value, size = walk.of(node.args[0]), shape(_node(node.args[0]))
    padding: Any = node.args[1]
    if value is None or value.dim >= len(size) - len(padding) // 2:
        return None
    return _over_map(node, value, size, value.dim)


def reduce(walk: Walk, node: fx.Node) -> Known:
    """A mean or the like over other dimensions than the channels."""
    value, size, given = walk.of(node.args[0]), shape(_node(node.args[0])), arguments(node)
    if value is None or not given.get("dim"):
        return None
    listed = [given["dim"]] if isinstance(given["dim"], int) else given["dim"]
    over = {one % len(size) for one in listed}
    if value.dim in over or (operation(node) == "sum" and 0 in over):  # a sum over a batch depends on its size
        return None
    dim = value.dim if given.get("keepdim") else value.dim - sum(one < value.dim for one in over)
    return _over_map(node, value, size, dim)


def _over_map(node: fx.Node, value: Value, size: torch.Size, dim: int) -> Value:
    """Asked of a map of ones: if it comes out uniform, so does every constant; if not, only zero does."""
    ones = torch.ones([1 if i == value.dim else n for i, n in enumerate(size)], dtype=torch.float64)
    result = _call(node, ones, *node.args[1:])
    factor = float(result.flatten()[0])
    uniform = bool((result - factor).abs().max() <= 1e-12 * abs(factor))
    live = value.live if uniform else value.live | (value.constant != 0)
    made = value.known(live, value.constant * factor)
    return Value(dim, made.channels, made.live, made.constant)


def move(walk: Walk, node: fx.Node) -> Known:
    """Elements change places only. Asked of a tensor that holds the number of each element's channel."""
    value = walk.of(node.args[0])
    if value is None or len(value) == 1 or len(node.all_input_nodes) > 1:
        return None
    size = shape(_node(node.args[0]))
    numbers = torch.arange(len(value)).view([-1 if i == value.dim else 1 for i in range(len(size))])
    moved = node.target(numbers.expand(size).contiguous(), *node.args[1:], **node.kwargs)  # type: ignore[operator]
    for dim in range(moved.dim()):
        source = moved[tuple(slice(None) if i == dim else 0 for i in range(moved.dim()))]
        if bool((moved == source.view([-1 if i == dim else 1 for i in range(moved.dim())])).all()):
            counts = torch.bincount(source, minlength=len(value))
            # All channels are still there, each as often: what is left after a removal moves in the same way.
            return value.taken(dim, source) if int(counts.min()) == int(counts.max()) > 0 else None
    return None


def reshape(walk: Walk, node: fx.Node) -> Known:
    """As ``move``, unless the model's code holds sizes that cannot follow."""
    return None if walk.fixed_shapes else move(walk, node)


def cat(walk: Walk, node: fx.Node) -> Known:
    """Channels one behind the other."""
    parts: Any = node.args[0]
    dim = arguments(node).get("dim", 0) % len(shape(node))
    values = [walk.of(part) for part in parts]
    if any(value is not None and value.dim != dim for value in values):
        return None
    own = [
        v if v is not None else walk.fresh(dim, shape(p)[dim], pinned=True) for p, v in zip(parts, values, strict=True)
    ]
    return joined(dim, own)


def getitem(walk: Walk, node: fx.Node) -> Known:
    """The first of several results is the tensor."""
    known = walk.values.get(_node(node.args[0]))
    return known[0] if isinstance(known, tuple) and node.args[1] == 0 else None


def _call(node: fx.Node, *args: Any) -> Tensor:
    """The operation itself, on other tensors."""
    result = node.target(*args, **node.kwargs)  # type: ignore[operator]
    first: Tensor = result[0] if isinstance(result, tuple) else result
    return first.double()


def _aligned(argument: Any, dim: int, rank: int) -> int:
    """A dimension of an argument as a dimension of the result it is broadcast to."""
    return dim + rank - len(shape(_node(argument)))


def _node(argument: Any) -> fx.Node:
    assert isinstance(argument, fx.Node)
    return argument


RULES: dict[str, Rule] = {"batch_norm": batch_norm, "prelu": prelu, "pad": pad, "cat": cat, "getitem": getitem}
for _names, _rule in (
    *((SAME, same), (UNARY, unary), (BINARY, binary), (SPATIAL, spatial)),
    *((REDUCE, reduce), (MOVE, move), (RESHAPE, reshape)),
):
    RULES |= dict.fromkeys(_names.split(), _rule)
