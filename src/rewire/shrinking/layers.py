"""The rule for the layers that have weights: which output needs which input, and which outputs are constants."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from rewire.shrinking.graph import Known, Walk, Wiring, arguments, operation, shape
from rewire.shrinking.rules import RULES
from rewire.shrinking.values import Value

LAYERS = "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"


def layer(walk: Walk, node: fx.Node) -> Known:
    """Outputs are new channels; those without a live input are constants."""
    given = arguments(node)
    owned, bias = walk.owned_tensor(given["weight"]), walk.owned_tensor(given["bias"])
    if owned is None or (bias is None and given["bias"] is not None):
        return None
    name, weight = owned
    transposed, groups = "transpose" in operation(node), int(given.get("groups", 1))
    source = shape(given["input"])
    dim = len(source) - 1 if operation(node) == "linear" else len(source) - weight.dim() + 1
    inputs = walk.of(given["input"])
    if inputs is not None and inputs.dim != dim:
        return None
    inputs = walk.fresh(dim, source[dim], pinned=True) if inputs is None else inputs
    exists = by_output(walk.masks.get(name, torch.ones_like(weight, dtype=torch.bool)).cpu(), groups, transposed)
    dense = by_output(weight, groups, transposed)
    binds = _binds(node, inputs, exists, groups, can_fold=bias is not None or _may_have_bias(walk, name))
    outputs = walk.fresh(dim, len(dense))
    carried = (dense.sum(2).view(groups, -1, dense.shape[1]) * inputs.constant.view(groups, 1, -1)).sum(2).flatten()
    outputs = outputs.known(binds.any(1), carried if bias is None else carried + bias[1])
    wiring = Wiring(name, bias[0] if bias else None, inputs, outputs, binds, groups, transposed)
    walk.wirings.append(wiring)
    _note_slices(walk, wiring)
    return outputs


def by_output(weight: Tensor, groups: int, transposed: bool) -> Tensor:
    """A weight, or its mask, as (outputs, inputs of a group, taps)."""
    if not transposed:
        return weight.reshape(weight.shape[0], weight.shape[1], -1)
    taps = weight.shape[2:].numel()
    split = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], taps)
    return split.transpose(1, 2).reshape(groups * weight.shape[1], -1, taps)


def _binds(node: fx.Node, inputs: Value, exists: Tensor, groups: int, can_fold: bool) -> Tensor:
    """Which outputs depend on which inputs in a way that a bias cannot hold."""
    movable = ~inputs.live & (inputs.constant == 0)
    constant = ~inputs.live & can_fold
    everywhere = _even_taps(node, inputs, exists.shape[2])
    by_group = exists.view(groups, -1, *exists.shape[1:])
    tied = (by_group & ~everywhere).any(3) & ~movable.view(groups, 1, -1)  # a tap that meets zero padding
    alive = by_group.any(3) & ~(constant | movable).view(groups, 1, -1)
    return (tied | alive).flatten(0, 1)


def _even_taps(node: fx.Node, inputs: Value, taps: int) -> Tensor:
    """Which taps of a kernel see the map, and never the padding, at every position of the output."""
    even = torch.ones(taps, dtype=torch.bool)
    if operation(node) == "linear" or bool((inputs.live | (inputs.constant == 0)).all()):
        return even
    given = arguments(node)
    size, kernel = shape(given["input"]), shape(given["weight"])[2:]
    one_hot = torch.eye(taps, dtype=torch.float64).view(taps, 1, *kernel)
    options: dict[str, Any] = {k: v for k, v in given.items() if k not in ("input", "weight", "bias", "groups")}
    if "transpose" in operation(node):
        one_hot = one_hot.transpose(0, 1)
    ones = torch.ones(1, 1, *size[-len(kernel) :], dtype=torch.float64)
    seen: Tensor = node.target(ones, one_hot, **options, groups=1)  # type: ignore[operator]
    return even & (seen[0].flatten(1) == 1).all(1)


def _may_have_bias(walk: Walk, weight: str) -> bool:
    path, _, attribute = weight.rpartition(".")
    owner = walk.model.get_submodule(path)
    return attribute == "weight" and isinstance(owner, (nn.Linear, nn.modules.conv._ConvNd))


def _note_slices(walk: Walk, wiring: Wiring) -> None:
    """The dimensions of weight and bias that shrink. In a grouped layer whole groups go, or none."""
    outputs, inputs = wiring.outputs.channels, wiring.inputs.channels
    if wiring.groups > 1:
        for ins, outs in zip(inputs.view(wiring.groups, -1), outputs.view(wiring.groups, -1), strict=True):
            for other in (ins[1:], outs):
                walk.classes.join(ins[:1].expand(len(other)), other)
        walk.sliced[wiring.weight, 0] = inputs if wiring.transposed else outputs
    else:
        walk.sliced[wiring.weight, 1 if wiring.transposed else 0] = outputs
        walk.sliced[wiring.weight, 0 if wiring.transposed else 1] = inputs
    if wiring.bias is not None:
        walk.sliced[wiring.bias, 0] = outputs


RULES |= dict.fromkeys(LAYERS.split(), layer)
