"""One layer on one sample: a program of its own, for models that do not run as a whole program."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rewire.kernels.csr import is_sorted
from rewire.kernels.geometry import Geometry
from rewire.kernels.sample.activation import INPUT, OUTPUT, Activation, Kind, Step
from rewire.kernels.sample.layer_steps import Weights, copy_margin, layer_steps
from rewire.kernels.sample.program import Program

MAX_INPUT = 1 << 28  # floats of an input: with margins and copies, its offsets still fit into 32 bits


class LayerProgram:
    """A layer for one size of input. It does not hold the positions, with which it is dropped from the cache."""

    def __init__(self, native: Any, geometry: Geometry, positions: Tensor, height: int, width: int) -> None:
        self.positions = self.order = None
        if not is_sorted(native, positions):
            positions, self.order = positions.sort()
            self.positions = positions
        source = Activation(geometry.inputs, height, width, offset=INPUT)
        values = torch.empty(len(positions), dtype=torch.float32, device="cpu")  # those of each call replace them
        steps = layer_steps(native, Weights(geometry, values, None, positions), source, copy_margin(geometry))
        layer, self.layer = steps[-1], len(steps) - 1
        if layer.target.pixels == 1:
            layer.target.offset = OUTPUT
        else:
            steps.append(Step(Kind.COPY, layer.target, replace(layer.target, margin=0, offset=OUTPUT)))
        self.program = Program(steps)
        self.shape = 1, layer.target.channels, layer.target.height, layer.target.width
        self.reads_positions = layer.col_idx is positions
        layer.values = None
        layer.col_idx = None if self.reads_positions else layer.col_idx

    @property
    def nbytes(self) -> int:
        """Memory of the CSR arrays."""
        return self.program.nbytes

    def run(
        self, native: Any, x: Tensor, values: Tensor, positions: Tensor, bias: Tensor | None, relu_limit: float
    ) -> Tensor:
        """The output for ``x`` of shape (1, C, H, W), contiguous."""
        if self.order is not None and self.positions is not None:
            values, positions = values[self.order], self.positions
        x, y = x.contiguous(), x.new_empty(self.shape)
        steps = type(self.program.native).from_buffer_copy(self.program.native)  # another thread may run the same layer
        layer = steps[self.layer]
        layer.values, layer.bias = values.data_ptr(), None if bias is None else bias.data_ptr()
        layer.relu, layer.limit = relu_limit >= 0, relu_limit
        if self.reads_positions:
            layer.col_idx = positions.data_ptr()
        self.program.run(native, x, y, x.new_empty(self.program.size), steps)
        return y
