"""The model as a graph of ATen operations, and what is noted while walking over it."""

import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from rewire.shrinking.values import Classes, Value

Known = Value | tuple[Value, None] | None  # None: nothing can be removed from it


class ShrinkError(ValueError):
    """The model cannot be shrunk, or not exactly."""


@dataclass(frozen=True)
class Wiring:
    """One use of a Linear or convolution: which outputs need which inputs.

    ``binds`` is (outputs, inputs of a group): an input that is not a constant, or one that cannot become part of the
    bias because zero padding is added to it.
    """

    weight: str
    bias: str | None  # None: there is none yet
    inputs: Value
    outputs: Value
    binds: Tensor
    groups: int
    transposed: bool

    def needed(self, outputs: Tensor) -> Tensor:
        """Which inputs these outputs need: ``(outputs,)`` bool to ``(inputs,)`` bool."""
        by_group = self.binds.view(self.groups, -1, self.binds.shape[1])
        return (by_group & outputs.view(self.groups, -1, 1)).any(1).flatten()


@dataclass
class Walk:
    """What the rules read and write."""

    model: nn.Module
    masks: Mapping[str, Tensor]  # by the name of the weight
    fixed_shapes: bool  # whether a reshape in the model's own code has numbers in it that cannot follow
    owned: dict[fx.Node, str] = field(default_factory=dict)  # parameters and buffers that one operation uses, alone
    values: dict[fx.Node, Known] = field(default_factory=dict)
    classes: Classes = field(default_factory=Classes)
    pinned: list[Tensor] = field(default_factory=list)
    sliced: dict[tuple[str, int], Tensor] = field(default_factory=dict)  # (parameter, dimension): channels
    wirings: list[Wiring] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    def of(self, argument: Any) -> Value | None:
        """What is known about an argument."""
        known = self.values.get(argument) if isinstance(argument, fx.Node) else None
        return known if isinstance(known, Value) else None

    def owned_tensor(self, argument: Any) -> tuple[str, Tensor] | None:
        """The parameter or buffer behind an argument, if nothing else uses it."""
        name = self.owned.get(argument) if isinstance(argument, fx.Node) else None
        return (name, self.tensors[name].detach().double()) if name is not None else None

    def is_parameter(self, name: str) -> bool:
        """Whether a name is that of a parameter: buffers may be read elsewhere, in ways that no graph shows."""
        return isinstance(self.tensors[name], nn.Parameter)

    def fresh(self, dim: int, size: int, pinned: bool = False) -> Value:
        """New channels about which nothing is known."""
        channels = self.classes.fresh(size)
        if pinned:
            self.pinned.append(channels)
        return Value(dim, channels, torch.ones(size, dtype=torch.bool), torch.zeros(size, dtype=torch.float64))

    def stop(self, node: fx.Node) -> None:
        """An operation whose effect on channels is not known: all that enters it stays."""
        for argument in node.all_input_nodes:
            known = self.values.get(argument)
            if isinstance(known, tuple):
                known = known[0]
            if known is not None:
                self.pinned.append(known.channels)


def trace(model: nn.Module, example: tuple[Any, ...]) -> tuple[fx.Graph, dict[fx.Node, str]]:
    """The graph, and the parameters and buffers that exactly one operation uses, by their placeholders."""
    try:
        program = torch.export.export(model, example, strict=False)
    except Exception as error:  # whatever the model's own code raises
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ShrinkError(f"torch.export cannot trace {type(model).__name__} with this example: {reason}") from error
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shared = Counter(
        id(tensor)
        for module in model.modules()
        for tensor in [*module._parameters.values(), *module._buffers.values()]
        if tensor is not None
    )
    owned = {
        node: names[node.name]
        for node in program.graph.nodes
        if node.op == "placeholder"
        and node.name in names
        and len(node.users) == 1
        and names[node.name] in tensors
        and shared[id(tensors[names[node.name]])] == 1
    }
    return program.graph, owned


def operation(node: fx.Node) -> str:
    """The bare name of an operation: ``relu`` for ``aten.relu_.default``."""
    if node.target is operator.getitem:
        return "getitem"
    schema = getattr(node.target, "_schema", None)
    return schema.name.removeprefix("aten::").rstrip("_") if schema is not None else str(node.target)


def arguments(node: fx.Node) -> dict[str, Any]:
    """All arguments of an ATen operation by name, defaults included."""
    schema: Any = node.target._schema  # type: ignore[union-attr]
    given = dict(zip((one.name for one in schema.arguments), node.args, strict=False))
    defaults = {one.name: one.default_value for one in schema.arguments if one.has_default_value()}
    return {**defaults, **given, **node.kwargs}


def shape(node: fx.Node) -> torch.Size:
    """The shape of a node's (first) tensor."""
    value = node.meta["val"]
    first = value[0] if isinstance(value, (tuple, list)) else value
    return torch.Size(int(size) for size in first.shape)
