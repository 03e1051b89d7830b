"""How a parameter lies in memory: which of its dimensions are inputs, outputs, taps of a kernel, or a stack."""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch

Dims = int | tuple[int, ...]  # neighbouring dimensions count as one: (heads, head size) as the outputs


@dataclass(frozen=True)
class Dimensions:
    """The order of a parameter's dimensions: ``(stack,) first, second, taps...``; inputs or outputs may come first."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    stack: int | None = None

    @classmethod
    def of(cls, inputs: Dims, outputs: Dims, stack: int | None = None) -> "Dimensions":
        """Checked: a sentence about every order that positions cannot be counted in."""
        ins, outs = ((dims,) if isinstance(dims, int) else tuple(dims) for dims in (inputs, outputs))
        leading = () if stack is None else (stack,)
        order = (*leading, *min(ins, outs), *max(ins, outs)) if ins and outs else ()
        if not order or order[0] != 0 or any(b - a != 1 for a, b in pairwise(order)):
            raise ValueError(
                f"inputs={inputs}, outputs={outputs}, stack={stack}: the dimensions must be the stack (if there is "
                "one), then inputs and outputs in either order, beginning with 0 and leaving none out; what follows "
                "are the taps of a kernel"
            )
        return cls(ins, outs, stack)

    @property
    def count(self) -> int:
        """How many dimensions they are, without the taps."""
        return len(self.inputs) + len(self.outputs) + (self.stack is not None)


@dataclass(frozen=True)
class Layout:
    """A parameter as a grouped convolution: the fields of a ``LayerSpec`` besides name and shape.

    ``on_request``: why the weight stays dense unless ``include=`` names it.
    """

    matrix: torch.Size
    groups: int = 1
    transposed: bool = False
    stack: int = 1
    on_request: str = ""


def layout_of(shape: torch.Size, dimensions: Dimensions, groups: int = 1, on_request: str = "") -> Layout:
    """The layout of a parameter whose dimensions have these meanings.

    >>> layout_of(torch.Size([8, 4, 6]), Dimensions.of(inputs=1, outputs=2, stack=0))
    Layout(matrix=torch.Size([32, 6]), groups=8, transposed=True, stack=8, on_request='')
    """
    transposed = dimensions.inputs < dimensions.outputs
    first, second = (dimensions.outputs, dimensions.inputs)[:: -1 if transposed else 1]
    stack = 1 if dimensions.stack is None else shape[dimensions.stack]
    rows, columns = (math.prod(shape[dim] for dim in dims) for dims in (first, second))
    matrix = torch.Size([stack * rows, columns, *shape[second[-1] + 1 :]])
    return Layout(matrix, groups * stack, transposed, stack, on_request)
