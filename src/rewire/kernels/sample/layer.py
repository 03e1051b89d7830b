"""One layer on one sample, for inference: planes instead of the batch-innermost format."""

import ctypes
from dataclasses import replace

import torch
from torch import Tensor

from rewire.kernels.batch.plan import is_sorted
from rewire.kernels.geometry import Geometry
from rewire.kernels.sample.activation import INPUT, OUTPUT, Kind, Planes, Step
from rewire.kernels.sample.program import Program, Weights, copy_margin, layer_steps

MOST = 1 << 28  # floats of an input: with borders and copies its offsets still fit into 32 bits


class SinglePlan:
    """The tables of one layer on one map. They do not hold the positions, with which they are forgotten."""

    def __init__(self, native: ctypes.CDLL, geometry: Geometry, positions: Tensor, height: int, width: int) -> None:
        self.positions = self.order = None
        if not is_sorted(native, positions):
            positions, self.order = positions.sort()
            self.positions = positions
        source = Planes(geometry.inputs, height, width, at=INPUT)
        weights = Weights(geometry, torch.empty(len(positions), dtype=torch.float32, device="cpu"), None, positions)
        steps = layer_steps(native, weights, source, copy_margin(geometry))
        layer, self.layer = steps[-1], len(steps) - 1
        if layer.target.pixels == 1:
            layer.target.at = OUTPUT
        else:
            steps.append(Step(Kind.COPY, layer.target, replace(layer.target, margin=0, at=OUTPUT)))
        self.program = Program(steps)
        self.shape = 1, layer.target.channels, layer.target.height, layer.target.width
        self.reads_positions = layer.offset is positions
        layer.values = None
        layer.offset = None if self.reads_positions else layer.offset

    @property
    def nbytes(self) -> int:
        """Memory of the tables."""
        return self.program.nbytes

    def run(
        self, native: ctypes.CDLL, x: Tensor, values: Tensor, positions: Tensor, bias: Tensor | None, limit: float
    ) -> Tensor:
        """The output for ``x`` of shape (1, C, H, W), contiguous like it."""
        if self.order is not None and self.positions is not None:
            values, positions = values[self.order], self.positions
        x, y = x.contiguous(), x.new_empty(self.shape)
        steps = type(self.program.native).from_buffer_copy(self.program.native)  # another thread may run the same layer
        step = steps[self.layer]
        step.values, step.bias = values.data_ptr(), None if bias is None else bias.data_ptr()
        step.active, step.limit = limit >= 0, limit
        if self.reads_positions:
            step.offset = positions.data_ptr()
        self.program.run(native, x, y, x.new_empty(self.program.size), steps)
        return y
