"""Which channels can be removed: constants are followed forwards through the graph, needs backwards."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rewire.shrinking.graph import LayerUse, Traversal, trace
from rewire.shrinking.rules import apply


@dataclass(frozen=True)
class Plan:
    """What is kept of every parameter, and which layers carry no signal."""

    indices: dict[tuple[str, int], Tensor]  # (parameter, dimension): the indices to keep, where some are removed
    layers: list[LayerUse]
    kept: Tensor  # (channels,) bool
    dummies: Tensor  # (channels,) bool: kept only because a layer cannot have zero channels
    dead: list[str]  # layers whose outputs are constant or unused, by the name of the weight

    def is_kept(self, channels: Tensor) -> Tensor:
        """Which of these channels are kept."""
        return self.kept[channels]


def plan(model: nn.Module, example: tuple[Any, ...], masks: Mapping[str, Tensor], keep_reshapes: bool = False) -> Plan:
    """What can be removed from a model, which is in float64 and in evaluation mode. Changes nothing."""
    graph, exclusive = trace(model, example)
    traversal = Traversal(model, masks, keep_reshapes, exclusive)
    for node in graph.nodes:
        if node.op == "call_function":
            traversal.values[node] = apply(traversal, node)
        elif node.op == "output":
            traversal.pin_inputs(node)
    groups = traversal.groups.of(torch.arange(len(traversal.groups)))
    needed = _needed(traversal, groups)
    dummies = _dummies(traversal, groups, needed)
    kept = needed | dummies
    indices = {key: kept[channels].nonzero().flatten() for key, channels in traversal.sliced.items()}
    indices = {key: index for key, index in indices.items() if len(index) < len(traversal.sliced[key])}
    dead = [use.weight for use in traversal.layers if not bool((needed[use.outputs.channels] & use.outputs.live).any())]
    return Plan(indices, traversal.layers, kept, dummies, dead)


def _needed(traversal: Traversal, groups: Tensor) -> Tensor:
    """Whether the outputs of the network depend on each channel, directly or through other channels."""
    by_group = torch.zeros(len(groups), dtype=torch.bool)
    for channels in traversal.pinned:
        by_group[groups[channels]] = True
    before = -1
    while (count := int(by_group.sum())) != before:
        before = count
        for use in reversed(traversal.layers):
            inputs = use.inputs_of(by_group[groups[use.outputs.channels]])
            by_group[groups[use.inputs.channels[inputs]]] = True
    return by_group[groups]


def _dummies(traversal: Traversal, groups: Tensor, needed: Tensor) -> Tensor:
    """One channel of each layer that would be left without any: a constant channel if there is one."""
    chosen = torch.zeros(len(groups), dtype=torch.bool)
    for use in traversal.layers:
        channels = use.outputs.channels
        if not bool((needed[channels] | chosen[groups[channels]]).any()):
            constants = channels[~use.outputs.live]
            chosen[groups[constants[0] if len(constants) else channels[0]]] = True
    return chosen[groups] & ~needed
