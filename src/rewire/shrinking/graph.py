"""The model as a graph of ATen operations, and what is collected while traversing it."""

import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from rewire._torch import buffers_of, parameters_of
from rewire.shrinking.values import ChannelGroups, Value

Known = Value | tuple[Value, None] | None  # None: nothing is known, so nothing can be removed


class ShrinkError(ValueError):
    """The model cannot be shrunk, or not exactly."""


class TraceError(ShrinkError):
    """``torch.export`` cannot trace the model."""


@dataclass(frozen=True)
class LayerUse:
    """One use of a Linear or convolution: which outputs depend on which inputs.

    ``depends`` is (outputs, inputs of a group): true for an input that is not constant, and for a constant that cannot
    be added to the bias because zero padding is mixed with it.
    """

    weight: str
    bias: str | None  # None: the layer has no bias yet
    inputs: Value
    outputs: Value
    depends: Tensor
    groups: int
    transposed: bool

    def inputs_of(self, outputs: Tensor) -> Tensor:
        """The inputs that some outputs depend on: ``(outputs,)`` bool to ``(inputs,)`` bool."""
        by_group = self.depends.view(self.groups, -1, self.depends.shape[1])
        return (by_group & outputs.view(self.groups, -1, 1)).any(1).flatten()


@dataclass
class Traversal:
    """What the rules read and write while the graph is traversed from inputs to outputs."""

    model: nn.Module
    masks: Mapping[str, Tensor]  # by the name of the weight
    keep_reshapes: bool  # treat every reshape as unknown: the model's own code may have sizes written into it
    exclusive: dict[fx.Node, str] = field(default_factory=dict)  # parameters and buffers with a single use
    values: dict[fx.Node, Known] = field(default_factory=dict)
    groups: ChannelGroups = field(default_factory=ChannelGroups)
    pinned: list[Tensor] = field(default_factory=list)  # channels that must be kept
    sliced: dict[tuple[str, int], Tensor] = field(default_factory=dict)  # (parameter, dimension): its channels
    layers: list[LayerUse] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    def value_of(self, argument: Any) -> Value | None:
        """What is known about an argument of an operation."""
        known = self.values.get(argument) if isinstance(argument, fx.Node) else None
        return known if isinstance(known, Value) else None

    def exclusive_tensor(self, argument: Any) -> tuple[str, Tensor] | None:
        """The name and the values of the parameter or buffer behind an argument, if nothing else uses it."""
        name = self.exclusive.get(argument) if isinstance(argument, fx.Node) else None
        return (name, self.tensors[name].detach().double()) if name is not None else None

    def is_parameter(self, name: str) -> bool:
        """Whether a name is that of a parameter: buffers may be read in ways that the graph does not show."""
        return isinstance(self.tensors[name], nn.Parameter)

    def new_value(self, dim: int, size: int, pinned: bool = False) -> Value:
        """New channels about which nothing is known."""
        channels = self.groups.new(size)
        if pinned:
            self.pinned.append(channels)
        return Value(dim, channels, torch.ones(size, dtype=torch.bool), torch.zeros(size, dtype=torch.float64))

    def pin_inputs(self, node: fx.Node) -> None:
        """Keep all channels that enter an operation: its effect on channels is not known."""
        for argument in node.all_input_nodes:
            known = self.values.get(argument)
            if isinstance(known, tuple):
                known = known[0]
            if known is not None:
                self.pinned.append(known.channels)


def trace(model: nn.Module, example: tuple[Any, ...]) -> tuple[fx.Graph, dict[fx.Node, str]]:
    """The graph, and the names of the parameters and buffers that exactly one operation uses, by their placeholders."""
    try:
        program = torch.export.export(model, example, strict=False)
    except Exception as error:  # the model's own code may raise anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TraceError(f"torch.export cannot trace {type(model).__name__} with this example: {reason}") from error
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    holders = Counter(
        id(tensor)
        for module in model.modules()
        for tensor in [*parameters_of(module).values(), *buffers_of(module).values()]
        if tensor is not None
    )
    exclusive = {
        node: names[node.name]
        for node in program.graph.nodes
        if node.op == "placeholder"
        and node.name in names
        and len(node.users) == 1
        and names[node.name] in tensors
        and holders[id(tensors[names[node.name]])] == 1
    }
    return program.graph, exclusive


def operation(node: fx.Node) -> str:
    """The bare name of an operation: ``relu`` for ``aten.relu_.default``."""
    if node.target is operator.getitem:
        return "getitem"
    schema = getattr(node.target, "_schema", None)
    return schema.name.removeprefix("aten::").rstrip("_") if schema is not None else str(node.target)


def arguments(node: fx.Node) -> dict[str, Any]:
    """All arguments of an ATen operation by name, defaults included."""
    parameters: Any = node.target._schema.arguments  # type: ignore[union-attr]
    positional = dict(zip((parameter.name for parameter in parameters), node.args, strict=False))
    defaults = {parameter.name: parameter.default_value for parameter in parameters if parameter.has_default_value()}
    return {**defaults, **positional, **node.kwargs}


def shape(node: fx.Node) -> torch.Size:
    """The shape of a node's (first) tensor."""
    value = node.meta["val"]
    first = value[0] if isinstance(value, (tuple, list)) else value
    return torch.Size(int(size) for size in first.shape)
