"""The dense weight gradient of 3x3 convolutions with stride 1, by Winograd's method: a quarter of the products.

The output is cut into tiles of 4x4 pixels, each of which reads 6x6 pixels of the input. Native code transforms both
(native/winograd.cpp), 36 matrix products multiply them, and one small product turns the 36 sums into the nine taps.
In float32 the rounding errors are a few times those of a direct sum.
"""

import torch
from torch import Tensor

from rewire.kernels.geometry import Geometry, to_hwcn
from rewire.kernels.library import native
from rewire.kernels.memory import POOL
from rewire.kernels.threads import thread_count

TILE, PRODUCTS = 4, 36  # pixels of a tile in each direction; products of a tile
CHUNK_BYTES = 1 << 21  # memory for transformed tiles, if more than one fits in
FEWEST_CHANNELS, FEWEST_PRODUCTS = 16, 1 << 22  # below, transforming costs more than it saves

_COMBINE = torch.tensor([[1.0, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 1]])  # A^T


class WinogradGradient:
    """The gradient of one convolution. ``x``: its input, ``grad``: the gradient of its output, both N, C, H, W."""

    @staticmethod
    def pays(x: Tensor, geometry: Geometry) -> bool:
        """Whether the layer is one that Winograd's method covers and speeds up."""
        height, width = (size + 2 * pad - 2 for size, pad in zip(x.shape[2:], geometry.padding, strict=True))
        covered = (geometry.shape[2:], geometry.stride, geometry.dilation) == ((3, 3), (1, 1), (1, 1))
        return (
            covered
            and geometry.groups == 1
            and min(height, width) >= TILE
            and min(geometry.shape[:2]) >= FEWEST_CHANNELS
            and geometry.numel * height * width * len(x) >= FEWEST_PRODUCTS
        )

    def __init__(self, x: Tensor, grad: Tensor, geometry: Geometry) -> None:
        self._x, self._grad, self._padding = to_hwcn(x), to_hwcn(grad), geometry.padding
        height, width = grad.shape[2:]
        self._tiles_wide = -(-width // TILE)
        self._tiles = -(-height // TILE) * self._tiles_wide

    def rows(self, channels: slice) -> Tensor:
        """Of the weights of these output channels: flat, in the order of their positions."""
        outputs, inputs, batch = channels.stop - channels.start, self._x.shape[2], self._x.shape[3]
        tile_floats = PRODUCTS * (outputs + inputs) * batch
        together = min(max(CHUNK_BYTES // (4 * tile_floats), 1), self._tiles)
        scratch = POOL.empty(together * tile_floats)
        sums = POOL.empty(PRODUCTS * outputs * inputs).view(PRODUCTS, outputs, inputs)
        for first in range(0, self._tiles, together):
            count = min(together, self._tiles - first)
            size = PRODUCTS * inputs * count * batch
            x = scratch[:size].view(PRODUCTS, inputs, count * batch)
            grad = scratch[size : size + PRODUCTS * outputs * count * batch].view(PRODUCTS, outputs, count * batch)
            self._transform_input(first, count, x)
            self._transform_grad(channels, first, count, grad)
            torch.baddbmm(sums, grad, x.transpose(1, 2), beta=1.0 if first else 0.0, out=sums)
        taps = torch.kron(_COMBINE, _COMBINE) @ sums.view(PRODUCTS, -1)  # [9, outputs * inputs]
        return taps.t().reshape(-1)

    def _transform_input(self, first: int, count: int, to: Tensor) -> None:
        height, width, channels, batch = self._x.shape
        native().rewire_winograd_input(
            self._x.data_ptr(), height, width, channels, channels, batch, *self._padding,
            self._tiles_wide, first, count, to.data_ptr(), thread_count(),
        )  # fmt: skip

    def _transform_grad(self, channels: slice, first: int, count: int, to: Tensor) -> None:
        height, width, pixel_channels, batch = self._grad.shape
        native().rewire_winograd_grad(
            self._grad[:, :, channels].data_ptr(), height, width, pixel_channels, channels.stop - channels.start, batch,
            self._tiles_wide, first, count, to.data_ptr(), thread_count(),
        )  # fmt: skip
