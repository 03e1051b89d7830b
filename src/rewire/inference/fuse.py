"""Rewriting a traced graph: batch norm folded into convolutions, ReLU fused into packed layers and residual sums."""

import operator

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from rewire._torch import parameters_of
from rewire.inference.nodes import modules_called_once, node_relu_limit, only_user
from rewire.nn.coverage import has_own_forward
from rewire.nn.hwcn import add_relu
from rewire.nn.packed import NO_RELU, Packed

_ADDITIONS = (operator.add, torch.add, "add")


def fold_batch_norm(model: fx.GraphModule) -> None:
    """In place: scale the weights of a convolution by the batch norm behind it, which goes.

    Only if the batch norm uses running statistics and nothing else reads the convolution's output.
    """
    for node in modules_called_once(model.graph):
        user = only_user(node)
        if user is None or user.op != "call_module":
            continue
        conv, batch_norm = model.get_submodule(str(node.target)), model.get_submodule(str(user.target))
        if not isinstance(conv, nn.Conv2d) or has_own_forward(type(conv)) or "weight" not in parameters_of(conv):
            continue
        if type(batch_norm) is nn.BatchNorm2d and batch_norm.track_running_stats:
            folded = fuse_conv_bn_eval(conv, batch_norm)
            conv.weight, conv.bias = folded.weight, folded.bias
            _replace(model.graph, user, node)


def fuse_relu(model: fx.GraphModule) -> None:
    """In place: let packed layers apply the ReLU behind them, if nothing else reads the layer's output."""
    for node in modules_called_once(model.graph):
        layer, user = model.get_submodule(str(node.target)), only_user(node)
        if not isinstance(layer, Packed) or layer.runs_users_forward or user is None:
            continue
        relu_limit = node_relu_limit(model, user)
        if relu_limit >= 0:
            layer.relu_limit = relu_limit
            _replace(model.graph, user, node)


def fuse_sums(model: fx.GraphModule) -> None:
    """In place: a sum of two activations, with the ReLU behind it if there is one, becomes one call of ``add_relu``."""
    graph = model.graph
    for node in [node for node in graph.nodes if _is_sum(node)]:
        user = only_user(node)
        relu_limit = NO_RELU if user is None else node_relu_limit(model, user)
        last = user if user is not None and relu_limit >= 0 else node
        with graph.inserting_after(last):
            fused = graph.call_function(add_relu, (*node.args, relu_limit))
        _replace(graph, last, fused)
        if last is not node:
            graph.erase_node(node)


def _is_sum(node: fx.Node) -> bool:
    """Whether a node adds the outputs of two nodes. Tracing records ``y += x`` as ``operator.add`` as well."""
    is_addition = node.op in ("call_function", "call_method") and node.target in _ADDITIONS and not node.kwargs
    return is_addition and len(node.args) == 2 and all(isinstance(arg, fx.Node) for arg in node.args)


def _replace(graph: fx.Graph, node: fx.Node, replacement: fx.Node) -> None:
    """Let all users of a node read the replacement instead, and erase the node."""
    node.replace_all_uses_with(replacement)
    graph.erase_node(node)
