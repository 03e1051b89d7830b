"""Rewriting a traced graph: batch norm folded into convolutions, ReLU fused into packed layers and residual sums."""

import operator

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from rewire._torch import is_intercepted, parameters_of
from rewire.inference.nodes import modules_called_once, node_relu_limit, only_user
from rewire.nn.coverage import has_own_forward
from rewire.nn.hwcn import HwcnBatchNorm2d, HwcnLinear, add_relu
from rewire.nn.packed import NO_RELU, Packed

_ADDITIONS = (operator.add, torch.add, "add")
_WITH_NEW_OUTPUT = (nn.Linear, HwcnLinear, nn.Conv1d, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, HwcnBatchNorm2d)


def fold_batch_norm(model: fx.GraphModule) -> None:
    """In place: scale the weights of a convolution by the batch norm behind it, which goes.

    Only if the batch norm uses running statistics, nothing else reads the convolution's output and neither has hooks.
    """
    for node in modules_called_once(model):
        user = only_user(node)
        if user is None or user.op != "call_module":
            continue
        conv, batch_norm = model.get_submodule(str(node.target)), model.get_submodule(str(user.target))
        if not isinstance(conv, nn.Conv2d) or has_own_forward(type(conv)) or "weight" not in parameters_of(conv):
            continue
        if is_intercepted(conv) or is_intercepted(batch_norm):
            continue
        if type(batch_norm) is nn.BatchNorm2d and batch_norm.track_running_stats:
            folded = fuse_conv_bn_eval(conv, batch_norm)
            conv.weight, conv.bias = folded.weight, folded.bias
            _replace(model.graph, user, node)


def fuse_relu(model: fx.GraphModule) -> None:
    """In place: let packed layers apply the ReLU behind them, if nothing else, such as a hook, reads their output."""
    for node in modules_called_once(model):
        layer, user = model.get_submodule(str(node.target)), only_user(node)
        if not isinstance(layer, Packed) or layer.runs_users_forward or is_intercepted(layer) or user is None:
            continue
        relu_limit = node_relu_limit(model, user)
        if relu_limit >= 0:
            layer.relu_limit = relu_limit
            _replace(model.graph, user, node)


def fuse_sums(model: fx.GraphModule) -> None:
    """In place: a sum of two activations, with the ReLU behind it if there is one, becomes one call of ``add_relu``."""
    graph = model.graph
    for node in [node for node in graph.nodes if _is_sum(model, node)]:
        user = only_user(node)
        relu_limit = NO_RELU if user is None else node_relu_limit(model, user)
        with graph.inserting_after(node):  # not behind the ReLU: until there the summands may change in place
            fused = graph.call_function(add_relu, (*node.args, relu_limit))
        if user is not None and relu_limit >= 0:
            _replace(graph, user, fused)
            graph.erase_node(node)
        else:
            _replace(graph, node, fused)


def _is_sum(model: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node adds the outputs of two nodes, and nobody can tell a sum in place from another one."""
    if node.op not in ("call_function", "call_method") or node.kwargs or len(node.args) != 2:
        return False
    first, second = node.args
    if not isinstance(first, fx.Node) or not isinstance(second, fx.Node):
        return False
    if node.target is operator.iadd:
        return only_user(first) is node and _returns_new_memory(model, first)
    return node.target in _ADDITIONS


def _returns_new_memory(model: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node is a layer or batch norm whose output shares memory with nothing else."""
    if node.op != "call_module":
        return False
    module = model.get_submodule(str(node.target))
    if isinstance(module, Packed):
        return not module.runs_users_forward and not is_intercepted(module)
    return type(module) in _WITH_NEW_OUTPUT and not is_intercepted(module)


def _replace(graph: fx.Graph, node: fx.Node, replacement: fx.Node) -> None:
    """Let all users of a node read the replacement instead, and erase the node."""
    node.replace_all_uses_with(replacement)
    graph.erase_node(node)
