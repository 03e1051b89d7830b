"""The rule for layers with weights: which outputs depend on which inputs, and which outputs are constants."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from rewire._torch import CONVOLUTION
from rewire.shrinking.graph import Known, LayerUse, Traversal, arguments, operation, shape
from rewire.shrinking.values import Value

LAYERS = "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"


def layer(traversal: Traversal, node: fx.Node) -> Known:
    """The outputs are new channels; an output that depends on no live input is a constant."""
    named = arguments(node)
    own_weight, bias = traversal.exclusive_tensor(named["weight"]), traversal.exclusive_tensor(named["bias"])
    if own_weight is None or (bias is None and named["bias"] is not None):
        return None
    name, weight = own_weight
    transposed, groups = "transpose" in operation(node), int(named.get("groups", 1))
    source = shape(named["input"])
    dim = len(source) - 1 if operation(node) == "linear" else len(source) - weight.dim() + 1
    inputs = traversal.value_of(named["input"])
    if inputs is not None and inputs.dim != dim:
        return None
    inputs = traversal.new_value(dim, source[dim], pinned=True) if inputs is None else inputs
    exists = by_output(traversal.masks.get(name, torch.ones_like(weight, dtype=torch.bool)).cpu(), groups, transposed)
    dense = by_output(weight, groups, transposed)
    depends = _depends(node, inputs, exists, groups, foldable=bias is not None or _may_have_bias(traversal, name))
    constant = (dense.sum(2).view(groups, -1, dense.shape[1]) * inputs.constant.view(groups, 1, -1)).sum(2).flatten()
    constant = constant if bias is None else constant + bias[1]
    outputs = traversal.new_value(dim, len(dense)).with_contents(depends.any(1), constant)
    use = LayerUse(name, bias[0] if bias else None, inputs, outputs, depends, groups, transposed)
    traversal.layers.append(use)
    _record_slices(traversal, use)
    return outputs


def by_output(weight: Tensor, groups: int, transposed: bool) -> Tensor:
    """A weight, or its mask, as (outputs, inputs of a group, taps)."""
    if not transposed:
        return weight.reshape(weight.shape[0], weight.shape[1], -1)
    taps = weight.shape[2:].numel()
    split = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], taps)
    return split.transpose(1, 2).reshape(groups * weight.shape[1], -1, taps)


def _depends(node: fx.Node, inputs: Value, exists: Tensor, groups: int, foldable: bool) -> Tensor:
    """Which outputs depend on which inputs in a way that a bias cannot express.

    ``foldable``: whether the layer has a bias or can be given one, which constant inputs can be added to.
    """
    zero = ~inputs.live & (inputs.constant == 0)
    constant = ~inputs.live & foldable
    unpadded = _unpadded_taps(node, inputs, exists.shape[2])
    by_group = exists.view(groups, -1, *exists.shape[1:])
    reads_padding = (by_group & ~unpadded).any(3) & ~zero.view(groups, 1, -1)
    reads_live = by_group.any(3) & ~(constant | zero).view(groups, 1, -1)
    return (reads_padding | reads_live).flatten(0, 1)


def _unpadded_taps(node: fx.Node, inputs: Value, taps: int) -> Tensor:
    """Which taps of a kernel read the feature map, never the padding, at every position of the output."""
    unpadded = torch.ones(taps, dtype=torch.bool)
    if operation(node) == "linear" or bool((inputs.live | (inputs.constant == 0)).all()):
        return unpadded
    named = arguments(node)
    size, kernel = shape(named["input"]), shape(named["weight"])[2:]
    one_hot = torch.eye(taps, dtype=torch.float64).view(taps, 1, *kernel)
    options: dict[str, Any] = {k: v for k, v in named.items() if k not in ("input", "weight", "bias", "groups")}
    if "transpose" in operation(node):
        one_hot = one_hot.transpose(0, 1)
    ones = torch.ones(1, 1, *size[-len(kernel) :], dtype=torch.float64)
    per_tap: Tensor = node.target(ones, one_hot, **options, groups=1)  # type: ignore[operator]
    return unpadded & (per_tap[0].flatten(1) == 1).all(1)


def _may_have_bias(traversal: Traversal, weight: str) -> bool:
    path, _, attribute = weight.rpartition(".")
    owner = traversal.model.get_submodule(path)
    return attribute == "weight" and isinstance(owner, (nn.Linear, CONVOLUTION))


def _record_slices(traversal: Traversal, use: LayerUse) -> None:
    """Record which dimensions of weight and bias hold which channels. A grouped layer loses whole groups or nothing."""
    outputs, inputs = use.outputs.channels, use.inputs.channels
    if use.groups > 1:
        for ins, outs in zip(inputs.view(use.groups, -1), outputs.view(use.groups, -1), strict=True):
            for others in (ins[1:], outs):
                traversal.groups.join(ins[:1].expand(len(others)), others)
        traversal.sliced[use.weight, 0] = inputs if use.transposed else outputs
    else:
        traversal.sliced[use.weight, 1 if use.transposed else 0] = outputs
        traversal.sliced[use.weight, 0 if use.transposed else 1] = inputs
    if use.bias is not None:
        traversal.sliced[use.bias, 0] = outputs
