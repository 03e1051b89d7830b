"""Lowering: from the traced graph of a packed model to the steps of a program for one sample.

The table ``LOWERINGS`` says which modules can be steps. If a graph has any other module or function, several inputs or
several results, there is no program for it and the model runs layer by layer. Lowered with a batch, a graph must also
keep the samples apart: every activation has the batch as its first dimension.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from rewire._torch import parameters_of
from rewire.inference.functional import SIZE_QUERIES, module_for
from rewire.inference.nodes import node_relu_limit, only_user
from rewire.kernels.csr import refuse_outside
from rewire.kernels.eligibility import runs_native
from rewire.kernels.library import native
from rewire.kernels.sample.activation import INPUT, OUTPUT, Activation, Kind, Step, Window
from rewire.kernels.sample.layer_steps import Weights, layer_steps, margin_for
from rewire.nn.coverage import extra_padding_of, geometry_of, no_kernel_reason
from rewire.nn.hwcn import HwcnLinear, add_relu, has_pool_kernel, leading_relu_limit, pool_window
from rewire.nn.packed import NO_RELU, Packed, PackedConv2d, PackedLinear, kernel_class
from rewire.nn.replace import HWCN_MODULES

_CONVOLUTIONS = (PackedConv2d, nn.Conv2d)


class NotLowerableError(Exception):
    """A node of the graph is none of the steps that a program for one sample can have."""


def lower(model: fx.GraphModule, x: Tensor) -> tuple[list[Step], torch.Size]:
    """The steps from one sample of ``x`` to the model's result, and the shape of the result for all of ``x``.

    Raises ``NotLowerableError`` if a node cannot be a step.
    """
    try:
        builder = ProgramBuilder(model)
        y = builder.run(torch.empty_like(x, device="meta"))
    except Exception as error:  # an error of the model itself is raised again when the model runs layer by layer
        raise NotLowerableError(str(error)) from error
    return builder.steps, y.shape


class ProgramBuilder(fx.Interpreter):
    """Interprets a graph on meta tensors, which have shapes and no data, and collects the steps of the program."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(model)
        self.steps: list[Step] = []
        self.samples = 1  # the size of the batch
        self.activations: dict[fx.Node, Activation] = {}
        self.aliases: dict[fx.Node, fx.Node] = {}  # nodes whose output shares memory with their input, such as flatten
        self.deferred: set[fx.Node] = set()  # layers that wait for the sum behind them, to be lowered with it
        called = [self.fetch_attr(str(node.target)) for node in model.graph.nodes if node.op == "call_module"]
        convolutions = [module for module in called if kernel_class(module) in _CONVOLUTIONS]
        self.margin = max((margin_for(_weights(module).geometry) for module in convolutions), default=0)

    def run_node(self, n: fx.Node) -> Any:
        """Lower one node; returns its output as a meta tensor."""
        if n.op == "placeholder":
            return self._lower_input(n, self.run_on_meta(n))
        if n.op == "output":
            return self._lower_output(n, self.run_on_meta(n))
        if n.op != "call_module" and n.target in SIZE_QUERIES:
            return self.run_on_meta(n)
        if n.op == "get_attr" or not n.args:
            raise NotLowerableError(f"{n} reads no activation, or reads it as a keyword argument")
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if n in self.activations:  # a ReLU: lowered already, as part of the layer before it
            return args[0]
        if n.target is add_relu:
            y = self.run_on_meta(n)
            _lower_sum(self, n, *n.args)
        else:
            module = self.fetch_attr(str(n.target)) if n.op == "call_module" else module_for(n, args, kwargs)
            if module is None or kernel_class(module) not in LOWERINGS:  # exact: a subclass may compute something else
                raise NotLowerableError(f"there is no step for {n.target}")
            y = LOWERINGS[kernel_class(module)](self, n, module, args[0])
        if n in self.activations and not self._has_shape_of(self.activations[n], y):
            raise NotLowerableError(f"{n} has another shape than its activation in the program")
        return y

    def _has_shape_of(self, activation: Activation, y: Tensor) -> bool:
        """Whether a tensor has the numbers of one such activation for each sample."""
        return len(y) == self.samples and y.numel() == self.samples * activation.channels * activation.pixels

    def run_on_meta(self, node: fx.Node) -> Any:
        """The output of a node on meta tensors, without lowering it."""
        return super().run_node(node)

    def activation(self, node: Any) -> Activation:
        """The activation that a node was lowered to."""
        if node not in self.activations:
            raise NotLowerableError(f"{node} is no activation of the sample")
        return self.activations[node]

    def add_steps(self, node: fx.Node, *steps: Step) -> None:
        """Append the steps that compute a node; the last one writes its activation."""
        self.steps += steps
        self.activations[node] = steps[-1].target

    def _lower_input(self, node: fx.Node, x: Tensor) -> Tensor:
        height, width = x.shape[2:] or (1, 1)
        self.samples = len(x)
        source = Activation(x.shape[1], height, width, offset=INPUT)
        self.add_steps(node, Step(Kind.COPY, source, replace(source, margin=self.margin, offset=0)))
        return x

    def _lower_output(self, node: fx.Node, y: Any) -> Tensor:
        if not isinstance(y, Tensor):
            raise NotLowerableError("the model returns something else than one tensor")
        result = self.activation(node.args[0])
        self.steps.append(Step(Kind.COPY, result, replace(result, margin=0, offset=OUTPUT)))
        return y

    def has_one_reader(self, node: Any) -> bool:
        """Whether the memory that torch would use for a node's output is read by its only user and by nothing else."""
        while node.op != "placeholder" and len(node.users) == 1:
            if node not in self.aliases:
                return True
            node = self.aliases[node]
        return False

    def add_layer(
        self, node: fx.Node, relu_limit: float, sum_node: fx.Node | None = None, addend: Activation | None = None
    ) -> None:
        """Append a layer. With ``addend``, that activation is added and the result is the output of ``sum_node``."""
        library, source = native(), self.activation(node.args[0])
        assert library is not None
        weights = replace(_weights(self.fetch_attr(str(node.target))), relu_limit=relu_limit)
        if weights.positions is not None:
            refuse_outside(weights.geometry, weights.positions)
        steps = layer_steps(library, weights, source, self.margin, addend)
        if addend is not None:
            _refuse_other_layout(steps[-1].target, addend)
        self.add_steps(sum_node or node, *steps)


def _lower_layer(builder: ProgramBuilder, node: fx.Node, module: nn.Module, x: Tensor) -> Tensor:
    """A linear layer or convolution; the ReLU or the sum behind it becomes part of it if nothing else reads it."""
    user = only_user(node)
    relu_limit = module.relu_limit if isinstance(module, Packed) else NO_RELU
    if relu_limit < 0 and user is not None and user.target is add_relu:
        builder.deferred.add(node)
    elif relu_limit < 0 and user is not None and node_relu_limit(builder.module, user) >= 0:
        builder.add_layer(node, node_relu_limit(builder.module, user))
        builder.activations[user] = builder.activations[node]
    else:
        builder.add_layer(node, relu_limit)
    geometry = _weights(module).geometry
    if x.dim() != (4 if kernel_class(module) in _CONVOLUTIONS else 2) or x.shape[1] != geometry.inputs:
        raise NotLowerableError(f"{module} cannot read an input of shape {tuple(x.shape)}")
    return x.new_empty(len(x), geometry.shape[0], *(geometry.output(*x.shape[2:]) if x.dim() == 4 else ()))


def _lower_sum(builder: ProgramBuilder, node: fx.Node, first: Any, second: Any, relu_limit: Any) -> None:
    """``add_relu``, as part of a layer whose output is not used otherwise, or as a step of its own."""
    if first is not second and first in builder.deferred:
        if second in builder.deferred:
            builder.add_layer(second, NO_RELU)
        builder.add_layer(first, relu_limit, node, builder.activation(second))
    elif first is not second and second in builder.deferred:
        builder.add_layer(second, relu_limit, node, builder.activation(first))
    else:
        for layer in {first, second} & builder.deferred:
            builder.add_layer(layer, NO_RELU)
        source, other = builder.activation(first), builder.activation(second)
        _refuse_other_layout(source, other)
        builder.add_steps(node, Step(Kind.ADD, source, replace(source), other, relu_limit))


def _lower_relu(builder: ProgramBuilder, node: fx.Node, module: nn.Module, x: Tensor) -> Tensor:
    source = builder.activation(node.args[0])
    if module.inplace and not builder.has_one_reader(node.args[0]):
        raise NotLowerableError(f"{node} changes an activation in place that other nodes read")
    builder.add_steps(node, Step(Kind.ADD, source, replace(source), relu_limit=leading_relu_limit([module])))
    return x


def _lower_alias(builder: ProgramBuilder, node: fx.Node, module: nn.Module, x: Tensor) -> Tensor:
    """Modules that return their input in inference, or flatten it. Only flattening several pixels copies anything."""
    input_node = node.args[0]
    assert isinstance(input_node, fx.Node)
    y: Tensor = builder.run_on_meta(node)
    source = builder.activation(input_node)
    builder.aliases[node] = input_node
    if y.shape == x.shape or (source.pixels == 1 and y.shape == (len(x), source.channels)):
        builder.activations[node] = source
    elif y.shape == (len(x), source.channels * source.pixels):
        builder.add_steps(node, Step(Kind.COPY, source, Activation(y.shape[1], 1, 1)))
    else:
        raise NotLowerableError(f"{node} changes the shape to {tuple(y.shape)}")
    return y


def _lower_max_pool(builder: ProgramBuilder, node: fx.Node, module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, nn.MaxPool2d)
    return _lower_pool(builder, node, module, Kind.MAX_POOL, _window(module))


def _lower_avg_pool(builder: ProgramBuilder, node: fx.Node, module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, nn.AvgPool2d)
    window = _window(module, module.count_include_pad)
    return _lower_pool(builder, node, module, Kind.AVG_POOL, window)


def _lower_adaptive_avg_pool(builder: ProgramBuilder, node: fx.Node, module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, nn.AdaptiveAvgPool2d)
    if module.output_size == x.shape[2:]:
        return _lower_alias(builder, node, module, x)
    source = builder.activation(node.args[0])
    return _lower_pool(builder, node, module, Kind.AVG_POOL, Window((source.height, source.width), (1, 1)))


def _lower_pool(
    builder: ProgramBuilder,
    node: fx.Node,
    module: nn.MaxPool2d | nn.AvgPool2d | nn.AdaptiveAvgPool2d,
    kind: Kind,
    window: Window,
) -> Tensor:
    if not has_pool_kernel(module):
        raise NotLowerableError(f"there is no step for {module}")
    source = builder.activation(node.args[0])
    y: Tensor = builder.run_on_meta(node)
    height, width = y.shape[2:] or (1, 1)
    builder.add_steps(
        node, Step(kind, source, Activation(source.channels, height, width, builder.margin), window=window)
    )
    return y


def _window(module: nn.MaxPool2d | nn.AvgPool2d, count_padding: bool = False) -> Window:
    height, width, stride_y, stride_x, pad_y, pad_x = pool_window(module)
    return Window((height, width), (stride_y, stride_x), (pad_y, pad_x), count_padding)


Lowering = Callable[[ProgramBuilder, fx.Node, nn.Module, Tensor], Tensor]

# Which modules can be steps of a program for one sample. A function takes the builder, the node, the module and the
# module's input as a meta tensor, appends the steps and returns the output as a meta tensor.
LOWERINGS: dict[type[nn.Module], Lowering] = {
    PackedLinear: _lower_layer,
    PackedConv2d: _lower_layer,
    nn.Linear: _lower_layer,
    HwcnLinear: _lower_layer,
    nn.Conv2d: _lower_layer,
    nn.ReLU: _lower_relu,
    nn.ReLU6: _lower_relu,
    nn.MaxPool2d: _lower_max_pool,
    nn.AvgPool2d: _lower_avg_pool,
    nn.AdaptiveAvgPool2d: _lower_adaptive_avg_pool,
    nn.Flatten: _lower_alias,
    nn.Identity: _lower_alias,
    nn.Dropout: _lower_alias,
    nn.Dropout2d: _lower_alias,
}
LOWERINGS |= {HWCN_MODULES[kind]: lowering for kind, lowering in LOWERINGS.items() if kind in HWCN_MODULES}


def _weights(layer: nn.Module) -> Weights:
    """Geometry, weights and bias of a layer, sparse or dense. Not copied: the program sees changed values."""
    weight, bias, positions = parameters_of(layer)["weight"], parameters_of(layer)["bias"], None
    assert weight is not None
    if isinstance(layer, Packed):
        geometry, positions = layer.geometry, layer.weight_positions
    elif isinstance(layer, nn.Conv2d) and (reason := no_kernel_reason(layer, weight)):
        raise NotLowerableError(reason)
    else:
        geometry = geometry_of(layer, weight.shape)
    if extra_padding_of(layer) != (0, 0):
        raise NotLowerableError(f"{layer} pads one side more than the other")
    tensors = [tensor.detach() for tensor in (weight, bias) if tensor is not None]
    if not runs_native(*tensors) or not all(tensor.is_contiguous() for tensor in tensors):
        raise NotLowerableError("the weights are not float32 on the CPU, or not contiguous")
    return Weights(geometry, tensors[0], None if bias is None else tensors[1], positions)


def _refuse_other_layout(activation: Activation, other: Activation) -> None:
    if activation.layout != other.layout:
        raise NotLowerableError("a sum of activations that differ in shape or margin")
