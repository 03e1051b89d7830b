"""Which channels nobody needs, to a fixed point: constants forwards through the graph, needs backwards."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rewire.shrinking import layers as _layers  # noqa: F401  (adds its rule)
from rewire.shrinking.graph import Walk, Wiring, trace
from rewire.shrinking.rules import apply


@dataclass(frozen=True)
class Plan:
    """What stays of every parameter, and the layers that are constants or unused as a whole."""

    kept: dict[tuple[str, int], Tensor]  # (parameter, dimension): indices that stay, where some go
    wirings: list[Wiring]
    keep: Tensor  # (channels,) bool
    stand_ins: Tensor  # (channels,) bool: kept only because a layer cannot have none
    dead: list[str]  # layers, by the name of the weight

    def stays(self, channels: Tensor) -> Tensor:
        """Which of the channels stay."""
        return self.keep[channels]


def plan(model: nn.Module, example: tuple[Any, ...], masks: Mapping[str, Tensor], fixed_shapes: bool = False) -> Plan:
    """Read-only: what can be removed from a model in evaluation mode and float64."""
    graph, owned = trace(model, example)
    walk = Walk(model, masks, fixed_shapes, owned)
    for node in graph.nodes:
        if node.op == "call_function":
            walk.values[node] = apply(walk, node)
        elif node.op == "output":
            walk.stop(node)
    classes = walk.classes.of(torch.arange(len(walk.classes)))
    keep = _needed(walk, classes)
    stand_ins = _stand_ins(walk, classes, keep)
    every = keep | stand_ins
    kept = {key: every[channels].nonzero().flatten() for key, channels in walk.sliced.items()}
    dead = [one.weight for one in walk.wirings if not bool((keep[one.outputs.channels] & one.outputs.live).any())]
    some = {key: index for key, index in kept.items() if len(index) < len(walk.sliced[key])}
    return Plan(some, walk.wirings, every, stand_ins, dead)


def _needed(walk: Walk, classes: Tensor) -> Tensor:
    """Whether each channel is needed: what the outputs of the network need, and what that needs, and so on."""
    by_class = torch.zeros(len(classes), dtype=torch.bool)
    for channels in walk.pinned:
        by_class[classes[channels]] = True
    before = -1
    while (now := int(by_class.sum())) != before:
        before = now
        for wiring in reversed(walk.wirings):
            needed = wiring.needed(by_class[classes[wiring.outputs.channels]])
            by_class[classes[wiring.inputs.channels[needed]]] = True
    return by_class[classes]


def _stand_ins(walk: Walk, classes: Tensor, keep: Tensor) -> Tensor:
    """A channel for each layer that would be left without: a constant one if there is one."""
    chosen = torch.zeros(len(classes), dtype=torch.bool)
    for wiring in walk.wirings:
        channels = wiring.outputs.channels
        if not bool((keep[channels] | chosen[classes[channels]]).any()):
            constants = channels[~wiring.outputs.live]
            chosen[classes[constants[0] if len(constants) else channels[0]]] = True
    return chosen[classes] & ~keep
