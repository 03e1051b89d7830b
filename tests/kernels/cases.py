"""Geometries that reach every branch of the kernels, random layers for them, and the ways to compute them."""

import itertools

import torch
import torch.nn.functional as F

from rewire.kernels.batch import ops
from rewire.kernels.geometry import Geometry

KERNELS = ((1, 1), (2, 2), (3, 3), (3, 2), (5, 5), (7, 7))
STRIDES, PADDINGS, DILATIONS, GROUPS = (1, 2, 3), (0, 1, 2), (1, 2), (1, 2, 4)  # four groups: depthwise
BATCHES = (1, 3, 16, 100, 128)
INPUTS = 4


def geometries():
    """Every combination of kernel, stride, padding, dilation and groups, on small inputs and, where it fits, on 1x1."""
    for kernel, stride, pad, dilation, groups in itertools.product(KERNELS, STRIDES, PADDINGS, DILATIONS, GROUPS):
        outputs = 8 if groups == INPUTS else 4  # depthwise: two for each input
        shape = (outputs, INPUTS // groups, *kernel)
        geometry = Geometry(shape, (stride, stride), (pad, pad), (dilation, dilation), groups)
        smallest = [max(dilation * (k - 1) + 1 - 2 * pad, 1) for k in kernel]
        yield geometry, (smallest[0] + 4, smallest[1] + 2)
        if smallest == [1, 1]:
            yield geometry, (1, 1)


def draw(geometry, size, batch, dtype=torch.float32, density=0.3, seed=0):
    """Input, values, positions (unsorted) and bias."""
    generator = torch.Generator().manual_seed(seed)
    positions = torch.randperm(geometry.numel, generator=generator)[: max(1, round(density * geometry.numel))]

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()

    return normal(batch, geometry.inputs, *size), normal(len(positions)), positions, normal(geometry.shape[0])


def run(kernel, x, values, positions, bias, geometry, grad):
    """Output and the three gradients."""
    y = kernel(x, values, positions, bias, geometry)
    return [y, *torch.autograd.grad(y, (x, values, bias), grad)]


def through_torch(x, values, positions, bias, geometry):
    g = geometry
    weight = values.new_zeros(g.numel).index_put((positions.long(),), values).view(g.shape)
    return F.conv2d(x, weight, bias, g.stride, g.padding, g.dilation, g.groups)


def through_operator(x, values, positions, bias, geometry):
    return ops.sparse_conv2d(x, values, positions, bias, geometry)


def linear(x, values, positions, bias, outputs, limit=-1.0):
    """A linear layer, as the packed store computes it: a convolution on inputs of one pixel."""
    geometry = Geometry((outputs, x.shape[1], 1, 1))
    return ops.sparse_conv2d(x[:, :, None, None], values, positions, bias, geometry, limit).flatten(1)


def agree(one, other, tolerance):
    """Assert that tensors are close in proportion to their largest value."""
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape
        atol = tolerance * max(1.0, float(b.detach().abs().max()) if b.numel() else 0.0)
        torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=atol)


def leave_nan_in_scratch_memory():
    """Compute a layer of NaN in both passes: what a later call reads of scratch memory before it writes shows up."""
    geometry, nan = Geometry((8, 300, 3, 3), padding=(1, 1)), float("nan")
    x = torch.full((32, 300, 5, 5), nan, requires_grad=True)
    values = torch.full((600,), nan, requires_grad=True)
    y = ops.sparse_conv2d(x, values, torch.arange(600) * 36, None, geometry)
    torch.autograd.grad(y, (x, values), torch.full_like(y, nan))


def compare(geometry, size, batch, density, limit=-1.0, seed=0):
    """Assert that output, moments and gradients agree with dense torch, whatever was computed before."""
    leave_nan_in_scratch_memory()
    x, values, positions, bias = draw(geometry, size, batch, density=density, seed=seed)
    moments = torch.empty(geometry.shape[0]), torch.empty(geometry.shape[0])
    y = ops.sparse_conv2d(x, values, positions, bias, geometry, limit, moments)
    expected = through_torch(x, values, positions, bias, geometry)
    expected = expected.clamp(0, limit) if limit >= 0 else expected
    agree([y, *moments], [expected, expected.mean((0, 2, 3)), expected.var((0, 2, 3), correction=0)], 1e-4)
    grad = torch.randn_like(expected)
    inputs = (x, values, bias)
    agree(torch.autograd.grad(y, inputs, grad), torch.autograd.grad(expected, inputs, grad), 1e-4)
