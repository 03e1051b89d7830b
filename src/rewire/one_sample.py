"""The traced graph of a packed model as a list of steps for one sample, which run in one native call."""

import math
import operator
from dataclasses import replace
from typing import Any, TypeGuard, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from rewire.kernels import ops
from rewire.kernels.library import native
from rewire.kernels.program import INPUT, OUTPUT, Kind, Planes, Step, Weights, layer_steps, margin_for
from rewire.stores.modules import Packed, PackedConv2d, PackedLinear, geometry_of, uncovered
from rewire.stores.twins import TWINS, InnermostFlatten, InnermostLinear, add_relu, is_plain, relu_limit, window_of

_RELU = (F.relu, torch.relu, "relu")
_FLAT = (torch.flatten, torch.reshape, "flatten", "view", "reshape")
_SIZES = (getattr, operator.getitem, "size")  # of maps, for those that make them flat
_POOLS: dict[Any, type[nn.Module]] = {
    F.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}
_BOTH_AXES = [((2, 3),), ([2, 3],), ((-2, -1),), ([-2, -1],)]  # of a map, as the argument of a mean
_LAYERS = (PackedConv2d, PackedLinear, nn.Conv2d, nn.Linear, InnermostLinear)
_AS_IT_IS = (nn.Dropout, nn.Dropout2d, nn.Identity, nn.Flatten, InnermostFlatten)


Module = TypeVar("Module", bound=nn.Module)


class NoStepError(Exception):
    """What the graph asks for is none of the steps."""


def limit_of(model: nn.Module, node: fx.Node) -> float:
    """The upper limit of the ReLU that a node is, below zero if it is none."""
    if node.op == "call_module":
        return relu_limit([model.get_submodule(str(node.target))])
    return math.inf if node.op in ("call_function", "call_method") and node.target in _RELU else -1.0


def follower(node: fx.Node) -> fx.Node | None:
    """The only node that uses a layer's output, if the layer itself is used once."""
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def steps_of(model: fx.GraphModule, x: Tensor) -> tuple[list[Step], torch.Size]:
    """The steps from a sample like ``x`` to the model's result, and its shape; ``NoStepError`` if a node has none."""
    shapes = _Shapes(model)
    try:
        y = shapes.run(x)
    except Exception as error:  # whatever it is, it is raised again where nothing hides it: the model runs as ever
        raise NoStepError(f"the model does not run on {tuple(x.shape)}") from error
    if not isinstance(y, Tensor):
        raise NoStepError("several results")
    writer = _Writer(model, shapes.found)
    for node in model.graph.nodes:
        writer.write(node)
    return writer.steps, y.shape


class _Shapes(fx.Interpreter):
    """Runs a graph and remembers the shape of every map."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(model)
        self.found: dict[fx.Node, torch.Size] = {}

    def run_node(self, n: fx.Node) -> Any:
        """As ever."""
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.found[n] = result.shape
        return result


class _Writer:
    """Goes through the nodes in their order."""

    def __init__(self, model: fx.GraphModule, shapes: dict[fx.Node, torch.Size]) -> None:
        self.model, self.shapes = model, shapes
        self.steps: list[Step] = []
        self.maps: dict[fx.Node, Planes] = {}
        self.waiting: set[fx.Node] = set()  # layers that are written together with the sum behind them
        self.margin = max((self._margin(node) for node in model.graph.nodes), default=0)

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self.model.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _margin(self, node: fx.Node) -> int:
        module = self._module(node)
        if not isinstance(module, nn.Conv2d) or not node.args or len(self._shape(node.args[0])) != 4:
            return 0
        return margin_for(_weights(module).geometry, *self._shape(node.args[0])[2:])

    def _shape(self, node: Any) -> torch.Size:
        if node not in self.shapes:
            raise NoStepError(f"{node} is no map")
        return self.shapes[node]

    def _map(self, node: Any) -> Planes:
        if node not in self.maps:
            raise NoStepError(f"{node} is no map of the sample")
        return self.maps[node]

    def _put(self, node: fx.Node, *steps: Step) -> None:
        self.steps += steps
        self.maps[node] = steps[-1].target

    def write(self, node: fx.Node) -> None:
        """The steps of one node, if it needs any."""
        if node in self.maps:  # written with the layer before it
            return
        is_module = node.op == "call_module"
        if node.op == "placeholder":
            self._begin(node)
        elif node.op == "output":
            self._end(node.args[0])
        elif not node.args:
            raise NoStepError(f"{node} reads no map, or calls it by name")
        elif node.target is add_relu:
            self._add(node, *node.args)
        elif limit_of(self.model, node) >= 0:
            self._relu(node)
        elif not is_module and node.target in _FLAT:
            self._same(node)
        elif is_module or node.target in _POOLS or _is_mean(node):
            self._run(node, self._module(node) or _pool(node))
        elif node.target not in _SIZES:
            raise NoStepError(f"there is no step for {node.target}")

    def _begin(self, node: fx.Node) -> None:
        if self.steps:
            raise NoStepError("a second input")
        _one, channels, *size = self._shape(node)
        height, width = size or (1, 1)
        source = Planes(channels, height, width, at=INPUT)
        self._put(node, Step(Kind.COPY, source, Planes(channels, height, width, self.margin)))

    def _end(self, node: Any) -> None:
        inner = self._map(node)
        self.steps.append(Step(Kind.COPY, inner, Planes(inner.channels, inner.height, inner.width, at=OUTPUT)))

    def _same(self, node: fx.Node) -> None:
        """A map under another name: through what does nothing when it does not train, or flat."""
        inner = self._map(node.args[0])
        size = inner.channels * inner.pixels
        if self._shape(node) == self._shape(node.args[0]) or (self._shape(node) == (1, size) and inner.pixels == 1):
            self.maps[node] = inner
        elif self._shape(node) == (1, size):
            self._put(node, Step(Kind.COPY, inner, Planes(size, 1, 1)))
        else:
            raise NoStepError(f"{node} has another shape")

    def _relu(self, node: fx.Node) -> None:
        given = node.args[0]
        source, module = self._map(given), self._module(node)
        in_place = any(node.args[1:]) or node.kwargs.get("inplace") or getattr(module, "inplace", False)
        if in_place and follower(given) is None:  # type: ignore[arg-type]
            raise NoStepError("a map that others read is changed")
        self._put(node, Step(Kind.ADD, source, _like(source), limit=limit_of(self.model, node)))

    def _add(self, node: fx.Node, first: Any, second: Any, limit: Any) -> None:
        """A sum, as part of a layer whose output is not used otherwise."""
        if first is not second and first in self.waiting:
            if second in self.waiting:
                self._layer(second, -1.0)
            self._layer(first, limit, node, self._map(second))
        elif second in self.waiting and first is not second:
            self._layer(second, limit, node, self._map(first))
        else:
            for one in {first, second} & self.waiting:
                self._layer(one, -1.0)
            source, other = self._map(first), self._map(second)
            _refuse_unlike(source, other)
            self._put(node, Step(Kind.ADD, source, _like(source), other, limit))

    def _run(self, node: fx.Node, module: nn.Module) -> None:
        if type(module) in _LAYERS:  # and no class of somebody else that computes something else
            after = follower(node)
            limit = module.limit if isinstance(module, Packed) else -1.0
            if limit < 0 and after is not None and after.target is add_relu:
                self.waiting.add(node)
            elif limit < 0 and after is not None and limit_of(self.model, after) >= 0:
                self._layer(node, limit_of(self.model, after))
                self.maps[after] = self.maps[node]
            else:
                self._layer(node, limit)
        elif type(module) in _AS_IT_IS or self._keeps_size(node, module):
            self._same(node)
        else:
            self._pool(node, module)

    def _layer(self, node: fx.Node, limit: float, result: fx.Node | None = None, other: Planes | None = None) -> None:
        """A layer; with ``other`` its result is that of the sum."""
        library, source, module = native(), self._map(node.args[0]), self._module(node)
        assert library is not None
        assert module is not None
        weights = _weights(module)
        if isinstance(module, nn.Conv2d) != (len(self._shape(node.args[0])) == 4):
            raise NoStepError("a linear layer on each row of a map")
        steps = layer_steps(library, replace(weights, limit=limit), source, self.margin, other)
        if other is not None:
            _refuse_unlike(steps[-1].target, other)
        self._put(result or node, *steps)

    def _keeps_size(self, node: fx.Node, module: nn.Module) -> bool:
        return _is_a(module, nn.AdaptiveAvgPool2d) and self._shape(node) == self._shape(node.args[0])

    def _pool(self, node: fx.Node, module: nn.Module) -> None:
        source = self._map(node.args[0])
        kind, window = _pooling(module, source)
        height, width = self._shape(node)[2:] or (1, 1)
        self._put(node, Step(kind, source, Planes(source.channels, height, width, self.margin), window=window))


def _pooling(module: nn.Module, source: Planes) -> tuple[Kind, tuple[int, ...]]:
    """The kind of a pooling and its window."""
    if _is_a(module, nn.AdaptiveAvgPool2d) and module.output_size in (1, (1, 1)):
        return Kind.AVERAGE_POOL, (source.height, source.width, 1, 1, 0, 0, 0, 0)
    if _is_a(module, nn.AvgPool2d) and not module.ceil_mode and module.divisor_override is None:
        return Kind.AVERAGE_POOL, (*window_of(module), int(module.count_include_pad), 0)
    if _is_a(module, nn.MaxPool2d) and is_plain(module):
        return Kind.MAX_POOL, (*window_of(module), 0, 0)
    raise NoStepError(f"there is no step for {module}")


def _is_a(module: nn.Module, kind: type[Module]) -> TypeGuard[Module]:
    """Whether a module is of a class of torch or its twin, and of no other that is derived from it."""
    return type(module) in (kind, TWINS[kind])


def _like(planes: Planes) -> Planes:
    return Planes(planes.channels, planes.height, planes.width, planes.margin)


def _refuse_unlike(one: Planes, other: Planes) -> None:
    if one.form != other.form:
        raise NoStepError("a sum of maps that lie in memory differently")


def _is_mean(node: fx.Node) -> bool:
    """Whether a node takes the mean of each map."""
    return node.target in (torch.mean, "mean") and node.args[1:2] in _BOTH_AXES and not node.kwargs


def _pool(node: fx.Node) -> nn.Module:
    """The module that a function of torch stands for. Behind the fifth, their arguments have another order."""
    if _is_mean(node):
        return nn.AdaptiveAvgPool2d(1)
    if len(node.args) > 5:
        raise NoStepError(f"{node} has too many arguments")
    return _POOLS[node.target](*node.args[1:], **node.kwargs)


def _weights(module: nn.Module) -> Weights:
    """Of a layer, sparse or dense."""
    weight, bias, positions = module._parameters["weight"], module._parameters["bias"], None
    assert weight is not None
    if isinstance(module, Packed):
        geometry, positions = module.geometry, module.weight_positions
    elif isinstance(module, nn.Conv2d) and (why := uncovered(module, weight)):
        raise NoStepError(why)
    else:
        geometry = geometry_of(module, weight.shape)
    if not ops.is_fast(weight, weight if bias is None else bias):
        raise NoStepError("the weights are of another type")
    return Weights(geometry, weight.detach().contiguous(), None if bias is None else bias.contiguous(), positions)
