"""Geometries that reach every branch of the kernels, and layers drawn for them."""

import itertools

import torch

from rewire.kernels.geometry import Geometry

SIZES = ((7, 5), (1, 1), (6, 6))


def geometries():
    """Every combination of kernel, stride, padding, dilation and groups that fits the map, with the map."""
    for kernel, stride, pad, dilation, groups, size in itertools.product(
        ((1, 1), (2, 2), (3, 3), (3, 2)), (1, 2, 3), (0, 1, 2), (1, 2), (1, 2, 6), SIZES
    ):
        if all(n + 2 * pad > dilation * (k - 1) for n, k in zip(size, kernel, strict=True)):
            yield Geometry((12, 6 // groups, *kernel), (stride,) * 2, (pad,) * 2, (dilation,) * 2, groups), size


def draw(geometry, size, batch, dtype=torch.float32, density=0.3, seed=0):
    """Input, values, positions (in no order) and bias."""
    generator = torch.Generator().manual_seed(seed)
    positions = torch.randperm(geometry.numel, generator=generator)[: max(1, round(density * geometry.numel))]

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()

    return normal(batch, geometry.inputs, *size), normal(len(positions)), positions, normal(geometry.shape[0])
