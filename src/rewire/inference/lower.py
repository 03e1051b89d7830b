"""The traced graph of a packed model as a list of steps for one sample, which run in one native call."""

import math
import operator
from dataclasses import replace
from typing import Any, TypeGuard, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from rewire.kernels.batch import ops
from rewire.kernels.library import native
from rewire.kernels.sample.activation import INPUT, OUTPUT, Kind, Planes, Step
from rewire.kernels.sample.program import Weights, layer_steps, margin_for
from rewire.nn.hwcn import TWINS, InnermostFlatten, InnermostLinear, add_relu, is_plain, relu_limit, window_of
from rewire.nn.packed import Packed, PackedConv2d, PackedLinear, geometry_of, uncovered

_RELU = {F.relu: math.inf, torch.relu: math.inf, "relu": math.inf, F.relu6: 6.0}
_FLAT = (torch.flatten, torch.reshape, "flatten", "view", "reshape")
_SIZES = (getattr, operator.getitem, "size")  # of maps, for those that make them flat
_MEAN = (torch.mean, "mean")
_BOTH_AXES = ((2, 3), (3, 2), (-2, -1), (-1, -2))
_POOLS: dict[Any, type[nn.Module]] = {
    F.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}
_CONVOLUTIONS, _LINEAR = (PackedConv2d, nn.Conv2d), (PackedLinear, nn.Linear, InnermostLinear)
_AS_IT_IS = (nn.Dropout, nn.Dropout2d, nn.Identity, nn.Flatten, InnermostFlatten)  # or flat
Module = TypeVar("Module", bound=nn.Module)


class NoStepError(Exception):
    """What the graph asks for is none of the steps."""


def limit_of(model: nn.Module, node: fx.Node) -> float:
    """The upper limit of the ReLU that a node is, below zero if it is none."""
    if node.op == "call_module":
        return relu_limit([model.get_submodule(str(node.target))])
    return _RELU.get(node.target, -1.0) if node.op in ("call_function", "call_method") else -1.0


def follower(node: fx.Node) -> fx.Node | None:
    """The only node that uses a layer's output, if the layer itself is used once."""
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def steps_of(model: fx.GraphModule, x: Tensor) -> tuple[list[Step], torch.Size]:
    """The steps from a sample like ``x`` to the model's result, and its shape; ``NoStepError`` if a node has none."""
    try:
        writer = _Writer(model)
        y = writer.run(torch.empty_like(x, device="meta"))
    except Exception as error:  # what is wrong with the model shows where nothing hides it: when it runs layer by layer
        raise NoStepError(str(error)) from error
    return writer.steps, y.shape


class _Writer(fx.Interpreter):
    """Goes through the nodes on tensors without memory, which tell the shapes, and writes the steps down."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(model)
        self.steps: list[Step] = []
        self.maps: dict[fx.Node, Planes] = {}
        self.aliases: dict[fx.Node, fx.Node] = {}  # nodes that are the same memory as another one, if torch runs them
        self.waiting: set[fx.Node] = set()  # layers that are written together with the sum behind them
        called = [self.fetch_attr(str(node.target)) for node in model.graph.nodes if node.op == "call_module"]
        convolutions = [module for module in called if type(module) in _CONVOLUTIONS]
        self.margin = max((margin_for(_weights(module).geometry) for module in convolutions), default=0)

    def run_node(self, n: fx.Node) -> Any:
        """One node: what it gives, without memory."""
        if n.op == "placeholder":
            return self._begin(n, super().run_node(n))
        if n.op == "output":
            return self._end(n, super().run_node(n))
        if n.op != "call_module" and n.target in _SIZES:
            return super().run_node(n)
        if n.op == "get_attr" or not n.args:
            raise NoStepError(f"{n} reads no map, or calls it by name")
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if n in self.maps:  # a ReLU that was written with the layer before it
            return args[0]
        if n.target is add_relu:
            y = super().run_node(n)
            self._add(n, *n.args)
        elif limit_of(self.module, n) >= 0:
            y = args[0]
            self._relu(n)
        else:
            y = self._call(n, _module(self.module, n, args, kwargs), args[0])
        if n in self.maps and self.maps[n].channels * self.maps[n].pixels != y.numel():
            raise NoStepError(f"{n} has another shape than its map")
        return y

    def _map(self, node: Any) -> Planes:
        if node not in self.maps:
            raise NoStepError(f"{node} is no map of the sample")
        return self.maps[node]

    def _put(self, node: fx.Node, *steps: Step) -> None:
        self.steps += steps
        self.maps[node] = steps[-1].target

    def _begin(self, node: fx.Node, x: Tensor) -> Tensor:
        height, width = x.shape[2:] or (1, 1)
        source = Planes(x.shape[1], height, width, at=INPUT)
        self._put(node, Step(Kind.COPY, source, replace(source, margin=self.margin, at=0)))
        return x

    def _end(self, node: fx.Node, y: Any) -> Tensor:
        if not isinstance(y, Tensor):
            raise NoStepError("several results")
        inner = self._map(node.args[0])
        self.steps.append(Step(Kind.COPY, inner, replace(inner, margin=0, at=OUTPUT)))
        return y

    def _relu(self, node: fx.Node) -> None:
        given, module = node.args[0], self.fetch_attr(str(node.target)) if node.op == "call_module" else None
        source = self._map(given)
        in_place = any(node.args[1:]) or node.kwargs.get("inplace") or getattr(module, "inplace", False)
        if in_place and not self._is_own(given):
            raise NoStepError("a map that others read is changed")
        self._put(node, Step(Kind.ADD, source, replace(source), limit=limit_of(self.module, node)))

    def _is_own(self, node: Any) -> bool:
        """Whether nobody else reads the memory that a node is."""
        while node.op != "placeholder" and len(node.users) == 1:
            if node not in self.aliases:
                return True
            node = self.aliases[node]
        return False

    def _add(self, node: fx.Node, first: Any, second: Any, limit: Any) -> None:
        """A sum, as part of a layer whose output is not used otherwise."""
        if first is not second and first in self.waiting:
            if second in self.waiting:
                self._layer(second, -1.0)
            self._layer(first, limit, node, self._map(second))
        elif first is not second and second in self.waiting:
            self._layer(second, limit, node, self._map(first))
        else:
            for one in {first, second} & self.waiting:
                self._layer(one, -1.0)
            source, other = self._map(first), self._map(second)
            _refuse_unlike(source, other)
            self._put(node, Step(Kind.ADD, source, replace(source), other, limit))

    def _call(self, node: fx.Node, module: nn.Module, x: Tensor) -> Tensor:
        if type(module) in (*_CONVOLUTIONS, *_LINEAR):  # and no class of somebody else that computes something else
            self._layer_or_wait(node, module)
            return x.new_empty(_written(module, x))
        if type(module) in _AS_IT_IS or (_is_a(module, nn.AdaptiveAvgPool2d) and module.output_size == x.shape[2:]):
            y: Tensor = super().run_node(node)
            self._same(node, x, y)
            return y
        source = self._map(node.args[0])
        kind, window = _pooling(module, source)
        y = super().run_node(node)
        height, width = y.shape[2:] or (1, 1)
        self._put(node, Step(kind, source, Planes(source.channels, height, width, self.margin), window=window))
        return y

    def _same(self, node: fx.Node, x: Tensor, y: Tensor) -> None:
        """A map under another name: through what does nothing when it does not train, or flat."""
        given, inner = node.args[0], self._map(node.args[0])
        assert isinstance(given, fx.Node)
        self.aliases[node] = given
        if y.shape == x.shape or (inner.pixels == 1 and y.shape == (1, inner.channels)):
            self.maps[node] = inner
        elif y.shape == (1, inner.channels * inner.pixels):
            self._put(node, Step(Kind.COPY, inner, Planes(y.shape[1], 1, 1)))
        else:
            raise NoStepError(f"{node} has another shape")

    def _layer_or_wait(self, node: fx.Node, module: nn.Module) -> None:
        after = follower(node)
        limit = module.limit if isinstance(module, Packed) else -1.0
        if limit < 0 and after is not None and after.target is add_relu:
            self.waiting.add(node)
        elif limit < 0 and after is not None and limit_of(self.module, after) >= 0:
            self._layer(node, limit_of(self.module, after))
            self.maps[after] = self.maps[node]
        else:
            self._layer(node, limit)

    def _layer(self, node: fx.Node, limit: float, result: fx.Node | None = None, other: Planes | None = None) -> None:
        """A layer; with ``other`` its result is that of the sum."""
        library, source = native(), self._map(node.args[0])
        assert library is not None
        weights = replace(_weights(self.fetch_attr(str(node.target))), limit=limit)
        if weights.positions is not None:
            ops.refuse_outside(weights.geometry, weights.positions)
        steps = layer_steps(library, weights, source, self.margin, other)
        if other is not None:
            _refuse_unlike(steps[-1].target, other)
        self._put(result or node, *steps)


def _module(model: nn.Module, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    """The module that a node calls, or that a function of torch stands for."""
    if node.op == "call_module":
        return model.get_submodule(str(node.target))
    if node.target in _FLAT or (node.target is F.dropout and not _trains(*args, **kwargs)):
        return nn.Identity()
    if node.target in _POOLS and len(args) <= 5:  # behind the fifth, arguments of functions and modules differ
        return _POOLS[node.target](*args[1:], **kwargs)
    if node.target in _MEAN and args[0].dim() == 4 and tuple(_axes(*args[1:], **kwargs)) in _BOTH_AXES:
        return nn.AdaptiveAvgPool2d(1)
    raise NoStepError(f"there is no step for {node.target}")


def _trains(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> bool:
    """Of the arguments of a dropout."""
    return training


def _axes(dim: Any, keepdim: bool = False) -> Any:
    """Of the arguments of a mean."""
    return dim


def _written(module: nn.Module, x: Tensor) -> tuple[int, ...]:
    """The shape of what a layer writes."""
    geometry = _weights(module).geometry
    if x.dim() != (4 if type(module) in _CONVOLUTIONS else 2) or x.shape[1] != geometry.inputs:
        raise NoStepError(f"{module} does not read {tuple(x.shape)}")
    return 1, geometry.shape[0], *(geometry.output(*x.shape[2:]) if x.dim() == 4 else ())


def _pooling(module: nn.Module, source: Planes) -> tuple[Kind, tuple[int, ...]]:
    """The kind of a pooling and its window."""
    if _is_a(module, nn.AdaptiveAvgPool2d) and is_plain(module):
        return Kind.AVERAGE_POOL, (source.height, source.width, 1, 1, 0, 0, 0, 0)
    if _is_a(module, nn.AvgPool2d) and is_plain(module):
        return Kind.AVERAGE_POOL, (*window_of(module), int(module.count_include_pad), 0)
    if _is_a(module, nn.MaxPool2d) and is_plain(module):
        return Kind.MAX_POOL, (*window_of(module), 0, 0)
    raise NoStepError(f"there is no step for {module}")


def _is_a(module: nn.Module, kind: type[Module]) -> TypeGuard[Module]:
    """Whether a module is of a class of torch or its twin, and of no other that is derived from it."""
    return type(module) in (kind, TWINS[kind])


def _refuse_unlike(one: Planes, other: Planes) -> None:
    if one.form != other.form:
        raise NoStepError("a sum of maps that lie in memory differently")


def _weights(module: nn.Module) -> Weights:
    """Of a layer, sparse or dense: not copied, so that whoever writes to them need not be noticed."""
    weight, bias, positions = module._parameters["weight"], module._parameters["bias"], None
    assert weight is not None
    if isinstance(module, Packed):
        geometry, positions = module.geometry, module.weight_positions
    elif isinstance(module, nn.Conv2d) and (why := uncovered(module, weight)):
        raise NoStepError(why)
    else:
        geometry = geometry_of(module, weight.shape)
    tensors = [one.detach() for one in (weight, bias) if one is not None]
    if not ops.is_fast(*tensors) or not all(one.is_contiguous() for one in tensors):
        raise NoStepError("the weights are of another type or not in order")
    return Weights(geometry, tensors[0], None if bias is None else tensors[1], positions)
