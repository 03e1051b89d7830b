"""Every combination of kernel, stride, padding, dilation, groups and batch: gradients, and native against reference."""

import math

import pytest
import torch
from tests.kernels import cases
from tests.kernels.cases import BATCHES, agree, draw, geometries, run, through_operator, through_torch

from rewire.kernels import library

CASES = list(geometries())

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_cases_are_all_combinations():
    seen = {(g.shape[2:], g.stride[0], g.padding[0], g.dilation[0], g.groups) for g, _ in CASES}
    axes = (cases.KERNELS, cases.STRIDES, cases.PADDINGS, cases.DILATIONS, cases.GROUPS)
    assert len(seen) == math.prod(map(len, axes)) == 324
    assert {size for _, size in CASES} >= {(1, 1), (5, 3), (17, 15)}
    assert any(g.groups == g.inputs for g, _ in CASES)


@pytest.mark.parametrize("batch", BATCHES)
def test_gradients_by_differences(batch):
    """float64, which the reference implementation computes; each input is moved along a random direction."""
    for index, (geometry, size) in enumerate(CASES):
        x, values, positions, bias = draw(geometry, size, batch, torch.float64, seed=index)

        def layer(x, values, bias, positions=positions, geometry=geometry):
            return through_operator(x, values, positions, bias, geometry)

        assert torch.autograd.gradcheck(layer, (x, values, bias), fast_mode=True, check_undefined_grad=False)


@pytest.mark.parametrize("batch", BATCHES)
def test_native_equals_the_reference(batch):
    """float32 with every instruction set of this machine, against the reference in float64."""
    for index, (geometry, size) in enumerate(CASES):
        x, values, positions, bias = draw(geometry, size, batch, seed=index)
        grad = torch.randn(
            batch, geometry.shape[0], *geometry.output(*size), generator=torch.Generator().manual_seed(index)
        )
        doubled = [t.detach().double().requires_grad_() for t in (x, values, bias)]
        exact = run(through_operator, *doubled[:2], positions, doubled[2], geometry, grad.double())
        for isa in library.available():
            with library.use(library.load(isa)):
                agree(run(through_operator, x, values, positions, bias, geometry, grad), exact, 1e-5)


@pytest.mark.parametrize("batch", [1, 3])
def test_the_reference_is_a_dense_convolution_with_zeros(batch):
    for index, (geometry, size) in enumerate(CASES):
        drawn = draw(geometry, size, batch, torch.float64, seed=index)
        grad = torch.randn(batch, geometry.shape[0], *geometry.output(*size), dtype=torch.float64)
        agree(run(through_operator, *drawn, geometry, grad), run(through_torch, *drawn, geometry, grad), 1e-12)
