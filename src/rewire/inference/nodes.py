"""Questions about the nodes of a traced graph."""

import math
from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from rewire.nn.hwcn import leading_relu_limit
from rewire.nn.packed import NO_RELU

_RELU_FUNCTIONS: dict[Any, float] = {F.relu: math.inf, torch.relu: math.inf, "relu": math.inf, F.relu6: 6.0}


def node_relu_limit(model: nn.Module, node: fx.Node) -> float:
    """The upper bound of the ReLU that a node is (infinity or 6), as a module or a function; negative if it is none."""
    if node.op == "call_module":
        return leading_relu_limit([model.get_submodule(str(node.target))])
    return _RELU_FUNCTIONS.get(node.target, NO_RELU) if node.op in ("call_function", "call_method") else NO_RELU


def only_user(node: fx.Node) -> fx.Node | None:
    """The node that uses a node's output, if there is exactly one."""
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def modules_called_once(model: fx.GraphModule) -> list[fx.Node]:
    """The calls of modules that the graph uses just there, so that changing the module changes this call alone.

    A module is also used where the graph reads its weight or bias directly, and where a module that contains it is
    called.
    """
    calls = [node for node in model.graph.nodes if node.op == "call_module"]
    used = [model.get_submodule(layer) for layer, _ in parameter_reads(model.graph)]
    for node in calls:
        used += model.get_submodule(str(node.target)).modules()
    counts = Counter(used)
    return [node for node in calls if counts[model.get_submodule(str(node.target))] == 1]


def parameter_reads(graph: fx.Graph) -> list[tuple[str, fx.Node]]:
    """The nodes that read an attribute of a module, such as ``self.layer.weight``, and the names of the modules."""
    return [(str(node.target).rpartition(".")[0], node) for node in graph.nodes if node.op == "get_attr"]
