"""One sample alone, for inference: planes instead of the batch-innermost format. The twin is the reference, as ever."""

import ctypes

import numpy as np
import torch
from torch import Tensor

from rewire.kernels.geometry import Geometry
from rewire.kernels.plan import LayerSizes


class _Single(ctypes.Structure):
    """The C structure ``Single`` (native/single.cpp)."""

    _fields_ = tuple(
        (name, ctypes.c_int32)
        for name in (
            *("channels", "height", "width", "out_height", "out_width"),
            *("stride_y", "stride_x", "pad_y", "pad_x", "tall", "broad"),
        )
    )


class SinglePlan:
    """The tables of one layer on one map: an offset for each non-zero, in the order of the sorted positions."""

    def __init__(self, native: ctypes.CDLL, geometry: Geometry, positions: Tensor, height: int, width: int) -> None:
        self.order: Tensor | None = None
        if not native.rewire_is_sorted(positions.data_ptr(), positions.dtype == torch.int64, len(positions)):
            positions, self.order = positions.sort()
        self.positions = positions if self.order is not None else None
        out = geometry.output(height, width)
        taps = [np.arange(k) * d for k, d in zip(geometry.shape[2:], geometry.dilation, strict=True)]
        tall, broad = (
            max((size + 2 * pad + step - 1) // step, int(tap[-1]) // step + o)
            for size, pad, step, tap, o in zip(
                (height, width), geometry.padding, geometry.stride, taps, out, strict=True
            )
        )
        self.sizes = _Single(geometry.inputs, height, width, *out, *geometry.stride, *geometry.padding, tall, broad)
        (sy, py), (sx, px) = (np.divmod(tap, step) for tap, step in zip(taps, geometry.stride, strict=True))
        phase = py[:, None] * geometry.stride[1] + px[None, :]
        plane = tall * broad
        reach = (phase * geometry.inputs * plane + sy[:, None] * broad + sx[None, :]).astype(np.int32)
        self.layer = LayerSizes(geometry.shape[0], geometry.shape[1], geometry.taps, geometry.groups)
        self.begin = np.empty(geometry.shape[0] + 1, np.int32)
        self.offset = np.empty(len(positions), np.int32)
        native.rewire_single_tables(
            ctypes.addressof(self.layer), positions.data_ptr(), positions.dtype == torch.int64, len(positions),
            np.ascontiguousarray(reach).ctypes.data, plane, self.begin.ctypes.data, self.offset.ctypes.data,
        )  # fmt: skip
        small = (height, width) == (1, 1) and geometry.padding == (0, 0) and geometry.taps == 1
        self.is_dot = small and geometry.groups == 1 and positions.dtype == torch.int32
        self.pointers = self.begin.ctypes.data, self.offset.ctypes.data  # asked for once: numpy takes its time

    @property
    def nbytes(self) -> int:
        """Memory of the tables."""
        return self.begin.nbytes + self.offset.nbytes

    def run(
        self, native: ctypes.CDLL, x: Tensor, values: Tensor, positions: Tensor, bias: Tensor | None, limit: float
    ) -> Tensor:
        """The output for ``x`` of shape (1, C, H, W), contiguous like it."""
        if self.order is not None and self.positions is not None:
            values, positions = values[self.order], self.positions
        x, s, rows = x.contiguous(), self.sizes, self.layer.outputs
        y = torch.empty(1, rows, s.out_height, s.out_width)
        rest = (
            x.data_ptr(), values.data_ptr(), None if bias is None else bias.data_ptr(), y.data_ptr(),
            limit >= 0, limit, torch.get_num_threads(),
        )  # fmt: skip
        begin, offset = self.pointers
        if self.is_dot:
            native.rewire_dot(rows, s.channels, begin, positions.data_ptr(), *rest)
        else:
            native.rewire_single(ctypes.addressof(s), rows, begin, offset, *rest)
        return y
