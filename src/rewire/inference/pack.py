"""``pack``: a trained sparse model made fast for inference. Batch norm is folded, bias and ReLU are fused."""

import copy
import operator
import time
import warnings

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from rewire.core.dense_ops import take, where_true
from rewire.inference.graph import PackedGraph, PackedTracer
from rewire.inference.lower import follower, limit_of
from rewire.kernels.geometry import batch_innermost
from rewire.nn.hwcn import InnermostLinear, add_relu, keep_innermost
from rewire.nn.packed import Packed, pack_module, uncovered
from rewire.stores.convert import to_dense

DENSEST = 0.3  # above this share of weights a dense layer is faster
_SUM = (operator.add, torch.add, "add")


@torch.no_grad()
def pack(
    model: nn.Module, example: Tensor | None = None, *, measure: bool = False, densest: float = DENSEST
) -> nn.Module:
    """A copy of a sparse model for inference, equal to ``model.eval()`` within rounding. The model stays as it is.

    Takes a masked or packed model, or a plain one with zeros. Layers denser than ``densest`` stay dense; with
    ``measure=True`` every layer is timed both ways on what it gets when the model is given ``example``.

    >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
    >>> _ = model[0].weight.data.mul_(torch.eye(8)[:4])
    >>> pack(model).get_submodule("0").weight.shape
    torch.Size([4])
    """
    if measure and example is None:
        raise ValueError("measure=True needs an example input to run the layers on: pack(model, example, measure=True)")
    plain, graph = _traced(to_dense(model).eval())
    for parameter in plain.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.contiguous()
    if graph is not None:
        _fold_batch_norm(plain, graph)
    layers = [module for module in plain.modules() if type(module) in (nn.Linear, nn.Conv2d)]
    chosen = [module for module in layers if not uncovered(module, _weight(module)) and _is_sparse(module, densest)]
    if measure and example is not None:
        chosen = _faster(plain, layers, example)
    for module in chosen:
        _pack(module)
    for module in plain.modules():
        _keep_innermost(module)
    if graph is not None:
        _fuse_relu(plain, graph)
        _fuse_sums(plain, graph)
        plain.recompile()  # type: ignore[operator]
    return plain


def _keep_innermost(module: nn.Module) -> None:
    keep_innermost(module)
    if type(module) is nn.Linear:
        module.__class__ = InnermostLinear


def _weight(module: nn.Module) -> Tensor:
    weight = module._parameters["weight"]
    assert weight is not None
    return weight.detach()


def _is_sparse(module: nn.Module, densest: float) -> bool:
    return int(_weight(module).count_nonzero()) <= densest * _weight(module).numel()


def _pack(module: nn.Module) -> None:
    positions = where_true(_weight(module) != 0)
    pack_module(module, positions, take(_weight(module), positions))
    module._parameters["weight"].requires_grad_(False)  # type: ignore[union-attr]


def _traced(model: nn.Module) -> tuple[nn.Module, fx.Graph | None]:
    """The model as a graph that can be edited, if it can be traced."""
    try:
        graph_module = PackedGraph(model, PackedTracer().trace(model))
    except Exception as error:  # tracing runs the user's own forward with proxies: it may raise anything
        warnings.warn(
            f"the model cannot be traced ({error}): its layers are packed, but batch norm and ReLU are not fused",
            stacklevel=3,
        )
        return model, None
    return graph_module, graph_module.graph


def _layer_nodes(plain: nn.Module, graph: fx.Graph, kinds: tuple[type[nn.Module], ...]) -> list[fx.Node]:
    calls = [node for node in graph.nodes if node.op == "call_module"]
    once = {target for target in (node.target for node in calls) if sum(n.target == target for n in calls) == 1}
    return [n for n in calls if n.target in once and isinstance(plain.get_submodule(str(n.target)), kinds)]


def _fold_batch_norm(plain: nn.Module, graph: fx.Graph) -> None:
    for node in _layer_nodes(plain, graph, (nn.Conv2d,)):
        after = follower(node)
        if after is None or after.op != "call_module":
            continue
        conv, norm = plain.get_submodule(str(node.target)), plain.get_submodule(str(after.target))
        if type(norm) is nn.BatchNorm2d and norm.track_running_stats and type(conv) is nn.Conv2d:
            fused = fuse_conv_bn_eval(conv, norm)
            conv.weight, conv.bias = fused.weight, fused.bias
            after.replace_all_uses_with(node)
            graph.erase_node(after)


def _fuse_relu(plain: nn.Module, graph: fx.Graph) -> None:
    for node in _layer_nodes(plain, graph, (Packed,)):
        after = follower(node)
        if after is None:
            continue
        limit = limit_of(plain, after)
        if limit >= 0:
            layer = plain.get_submodule(str(node.target))
            assert isinstance(layer, Packed)
            layer.limit = limit
            after.replace_all_uses_with(node)
            graph.erase_node(after)


def _fuse_sums(plain: nn.Module, graph: fx.Graph) -> None:
    """The end of a residual block in one go: a sum of two maps and the ReLU behind it."""
    for node in [node for node in graph.nodes if _is_sum(node)]:
        after = follower(node)
        limit = -1.0 if after is None else limit_of(plain, after)
        last = after if after is not None and limit >= 0 else node
        with graph.inserting_after(last):
            fused = graph.call_function(add_relu, (*node.args, limit))
        last.replace_all_uses_with(fused)
        for done in dict.fromkeys((last, node)):
            graph.erase_node(done)


def _is_sum(node: fx.Node) -> bool:
    """Whether a node adds two tensors, or what may be such. Tracing makes ``y += x`` a sum like any other."""
    known = node.op in ("call_function", "call_method") and node.target in _SUM and not node.kwargs
    return known and len(node.args) == 2 and all(isinstance(arg, fx.Node) for arg in node.args)


def _faster(plain: nn.Module, layers: list[nn.Module], example: Tensor) -> list[nn.Module]:
    """The layers that are faster packed, each timed on its own input."""
    if isinstance(plain, fx.GraphModule):
        plain.recompile()
    inputs: dict[nn.Module, Tensor] = {}
    hooks = [m.register_forward_pre_hook(lambda m, args: inputs.update({m: args[0].detach()})) for m in layers]
    plain(example)
    for hook in hooks:
        hook.remove()
    return [m for m in layers if m in inputs and not uncovered(m, _weight(m)) and _gains(m, inputs[m])]


def _gains(module: nn.Module, x: Tensor) -> bool:
    """Whether a layer is faster packed. Among packed ones a dense convolution changes the memory format twice."""
    twin, plain = _alone(module), _alone(module)
    _pack(twin.get_submodule("0"))
    _keep_innermost(plain.get_submodule("0"))
    image = x.dim() == 4 and len(x) > 1
    given = batch_innermost(x).permute(3, 2, 0, 1) if image else x.t().contiguous().t() if x.dim() == 2 else x

    def dense() -> Tensor:
        y: Tensor = plain(given)
        return batch_innermost(y) if image else y

    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(5):  # in turns: whatever slows the machine down meets both
        for packed, work in ((False, dense), (True, lambda: twin(given))):
            began = time.perf_counter()
            work()
            times[packed].append(time.perf_counter() - began)
    return min(times[True]) < min(times[False])


def _alone(module: nn.Module) -> PackedGraph:
    """A model of one layer, which runs a single sample as the whole model will."""
    model = nn.Sequential(copy.deepcopy(module))
    return PackedGraph(model, PackedTracer().trace(model))
