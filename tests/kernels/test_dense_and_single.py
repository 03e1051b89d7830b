"""Other ways through a sparse layer: dense convolution, a single sample, channel moments, non-temporal stores."""

import math

import pytest
import torch
from tests.kernels.cases import agree, compare, draw, geometries, linear, through_torch

from rewire.kernels import library
from rewire.kernels.batch import ops
from rewire.kernels.batch.plan import Plan
from rewire.kernels.geometry import Geometry
from rewire.kernels.plan_cache import cached_plan
from rewire.kernels.tuning import DENSE_ABOVE

pytestmark = [
    pytest.mark.skipif(not library.available(), reason="the native kernels are not built"),
    pytest.mark.usefixtures("isa"),
]
CASES = list(geometries())
PADDED = Geometry((12, 6, 3, 3), padding=(1, 1))


@pytest.mark.parametrize("batch", [1, 3, 16, 100, 128])
@pytest.mark.parametrize("density", [0.6, 0.8, 1.0])
def test_native_dense_convolution(batch, density):
    cases = CASES if batch == 3 else CASES[batch % 7 :: 7]
    used = 0
    for index, (geometry, size) in enumerate(cases):
        positions = torch.arange(round(density * geometry.numel))
        used += all(cached_plan(Plan, geometry, positions, *size).dense)
        compare(geometry, size, batch, density, seed=index)
    assert (used > len(cases) // 10) == (density > DENSE_ABOVE[1])


def test_layers_of_high_density_are_computed_dense():
    forward, backward = DENSE_ABOVE
    for share, expected in ((forward, [False, False]), (backward, [True, False]), (backward + 0.02, [True, True])):
        positions = torch.arange(int(share * PADDED.numel))
        assert cached_plan(Plan, PADDED, positions, 8, 8).dense == expected
        assert not any(
            cached_plan(Plan, Geometry((12, 54, 1, 1)), positions, 1, 1).dense
        )  # a linear layer has one pixel
    assert not any(cached_plan(Plan, Geometry((6, 1, 3, 3), groups=6), torch.arange(54), 8, 8).dense)


@pytest.mark.parametrize("batch", [1, 3, 16, 20])
@pytest.mark.parametrize("limit", [-1.0, 1.5, math.inf])
def test_native_moments_and_relu(batch, limit):
    for density in (0.2, 0.8):
        compare(PADDED, (7, 5), batch, density, limit)


def test_native_moments_far_from_zero():
    """Squares of large numbers would cancel: the variance is 1e-4 of the squared mean here."""
    x, values, positions, _ = draw(PADDED, (9, 9), 32)
    bias = torch.full((12,), 1000.0)
    mean, variance = torch.empty(12), torch.empty(12)
    y = ops.sparse_conv2d(x, values, positions, bias, PADDED, -1.0, (mean, variance)).double()
    torch.testing.assert_close(mean.double(), y.mean((0, 2, 3)))
    torch.testing.assert_close(variance.double(), y.var((0, 2, 3), correction=0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_native_single_sample(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    for index, (geometry, size) in enumerate(CASES):
        x, values, positions, bias = (t.detach() for t in draw(geometry, size, 1, seed=index))
        if index % 2:  # sorted and 32-bit, as the packed store has them; else unsorted
            positions, order = positions.sort()
            positions, values = positions.int(), values[order]
        with torch.no_grad():
            y = ops.sparse_conv2d(x, values, positions, bias, geometry, 4.0)
        agree([y], [through_torch(x, values, positions, bias, geometry).clamp(0, 4)], 1e-4)
    torch.set_num_threads(before)


def test_native_single_sample_passes_nan_through():
    with torch.no_grad():
        y = linear(torch.tensor([[float("nan"), -1.0]]), torch.ones(2), torch.tensor([0, 3]), None, 2, math.inf)
    assert y[0, 0].isnan()
    assert y[0, 1] == 0


@pytest.mark.parametrize("density", [0.1, 0.6])
def test_native_large_outputs_are_written_past_the_caches(density):
    """Outputs of four megabytes and more use non-temporal stores."""
    compare(Geometry((40, 8, 3, 3), padding=(1, 1)), (41, 41), 16, density)
    compare(Geometry((8, 40, 3, 3), (2, 2), padding=(1, 1)), (41, 41), 16, density)


def test_positions_of_either_width_and_in_any_order_are_the_same_layer():
    x, values, positions, bias = draw(PADDED, (6, 6), 5)
    grad = torch.randn(5, 12, 6, 6)
    expected = ops.sparse_conv2d(x, values, positions, bias, PADDED)
    gradients = torch.autograd.grad(expected, (x, values), grad)
    order = positions.argsort()
    for kind in (torch.int32, torch.int64):
        ranked = positions[order].to(kind)
        y = ops.sparse_conv2d(x, values[order], ranked, bias, PADDED)
        torch.testing.assert_close(y, expected)
        agree(torch.autograd.grad(y, (x, values), grad), gradients, 1e-4)
