"""What can be said about a chain of stages without its tensors: the shapes of its activations, and where gradients go.

Activations have numbers: 0 is the input of the chain, i + 1 the output of stage i.
"""

import functools
from typing import NamedTuple

from rewire.kernels.geometry import Geometry

Shape = tuple[int, ...]  # channels, height, width


class Stage(NamedTuple):
    """A convolution and the batch norm behind it, with what follows: a sum, a ReLU, a 2x2 max pooling."""

    source: int
    geometry: Geometry
    eps: float
    relu_limit: float = -1.0  # upper limit of the ReLU; below zero: no ReLU
    addend: int | None = None  # the activation that is added between batch norm and ReLU
    pool: bool = False  # only without an addend


class ChainShapes(NamedTuple):
    """Shapes of what the stages of a chain write."""

    before_norm: tuple[Shape, ...]  # outputs of the convolutions
    activations: tuple[Shape, ...]


@functools.lru_cache(maxsize=1024)
def chain_shapes(stages: tuple[Stage, ...], given: Shape) -> ChainShapes:
    """The shapes for an input of the shape ``given``; raises if stages do not fit together, which native code trusts.

    >>> square = Geometry((4, 4, 3, 3), padding=(1, 1))
    >>> chain_shapes((Stage(0, square, 1e-5), Stage(1, square, 1e-5, addend=0)), (4, 8, 8)).activations
    ((4, 8, 8), (4, 8, 8), (4, 8, 8))
    >>> chain_shapes((Stage(0, square, 1e-5, pool=True),), (4, 7, 8))
    Traceback (most recent call last):
    ValueError: 2x2 pooling needs an even height and width and no addend: stage 0 has 7x8 pixels and the addend None
    """
    before_norm: list[Shape] = []
    activations = [given]
    for index, stage in enumerate(stages):
        if not (0 <= stage.source <= index and (stage.addend is None or 0 <= stage.addend <= index)):
            read = f"{stage.source} and adds {stage.addend}"
            raise ValueError(f"stage {index} can read the activations 0 to {index}, but it reads {read}")
        channels, height, width = activations[stage.source]
        if channels != stage.geometry.inputs:
            expected = stage.geometry.inputs
            raise ValueError(f"stage {index} reads {expected} channels, but activation {stage.source} has {channels}")
        shape = (stage.geometry.shape[0], *stage.geometry.output(height, width))
        before_norm.append(shape)
        if stage.addend is not None and activations[stage.addend] != shape:
            raise ValueError(f"stage {index} adds activations of the shapes {shape} and {activations[stage.addend]}")
        if stage.pool:
            if shape[1] % 2 or shape[2] % 2 or stage.addend is not None:
                raise ValueError(
                    "2x2 pooling needs an even height and width and no addend: "
                    f"stage {index} has {shape[1]}x{shape[2]} pixels and the addend {stage.addend}"
                )
            shape = shape[0], shape[1] // 2, shape[2] // 2
        activations.append(shape)
    unread = set(range(1, len(stages))) - {number for stage in stages for number in (stage.source, stage.addend)}
    if unread or not stages:
        raise ValueError(f"a chain has stages, and later ones read all activations: nothing reads {sorted(unread)}")
    return ChainShapes(tuple(before_norm), tuple(activations))


class StageBuffers(NamedTuple):
    """Which buffers the backward pass of a stage reads and writes; the fields of ``StageGradients`` tell what for."""

    output: int
    before_relu: int | None
    addend_part: int | None
    addend: int | None
    before_norm: int
    source_part: int | None
    source: int | None


class GradientPlan(NamedTuple):
    """The buffers of a backward pass, by number: 0 is the gradient that comes in, which is not written to."""

    shapes: tuple[Shape, ...]
    stages: tuple[StageBuffers, ...]
    input: int | None  # holds the gradient of the chain's input at the end


@functools.lru_cache(maxsize=1024)
def plan_gradients(stages: tuple[Stage, ...], given: Shape, input_needed: bool, kept: tuple[bool, ...]) -> GradientPlan:
    """Where the gradients of a chain go for an input of the shape ``given``.

    A buffer is used again by what is needed later, except for the gradients of the convolutions' outputs that are
    ``kept``.

    >>> square = Geometry((4, 4, 3, 3), padding=(1, 1))
    >>> plan = plan_gradients((Stage(0, square, 1e-5), Stage(1, square, 1e-5)), (4, 8, 8), True, (False, False))
    >>> len(plan.shapes) - 1, plan.input  # each of both convolutions and both batch norms writes a gradient
    (2, 2)
    """
    shapes = chain_shapes(stages, given)
    buffers, known = _Buffers(shapes.activations[-1]), {len(stages): 0}  # the gradients of activations
    planned: list[StageBuffers] = []
    for index in reversed(range(len(stages))):
        stage, output = stages[index], known.pop(index + 1)
        before_relu = addend = addend_part = source = None
        if stage.addend is not None and stage.relu_limit >= 0:
            before_relu = buffers.take(shapes.before_norm[index])
        before_norm = buffers.take(shapes.before_norm[index])
        of_sum = output if before_relu is None else before_relu
        if before_relu is not None:
            buffers.free(output)
        if stage.addend is None or (stage.addend == 0 and not input_needed):
            buffers.free(of_sum)
        elif (addend_part := known.get(stage.addend)) is None:
            known[stage.addend] = of_sum
        else:
            addend = known[stage.addend] = buffers.take(shapes.before_norm[index])
            buffers.free(addend_part, of_sum)
        source_part = known.get(stage.source)
        if stage.source > 0 or input_needed:
            source = known[stage.source] = buffers.take(shapes.activations[stage.source])
            buffers.free(source_part)
        if not kept[index]:
            buffers.free(before_norm)
        planned.append(StageBuffers(output, before_relu, addend_part, addend, before_norm, source_part, source))
    return GradientPlan(tuple(buffers.shapes), tuple(reversed(planned)), known.get(0))


class _Buffers:
    """Numbered buffers that are free again after their last use."""

    def __init__(self, first: Shape) -> None:
        self.shapes: list[Shape] = [first]
        self._free: list[int] = []

    def take(self, shape: Shape) -> int:
        """A buffer of this shape."""
        for number in self._free:
            if self.shapes[number] == shape:
                self._free.remove(number)
                return number
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def free(self, *numbers: int | None) -> None:
        """What these buffers hold is no longer needed; the first one is not ours."""
        self._free += [number for number in numbers if number]
