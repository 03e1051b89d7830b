"""Batch norm and pooling in HWCN layout, against torch's own."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from rewire.kernels import library
from rewire.kernels.batch import norm, pooling, relu
from rewire.kernels.geometry import is_hwcn

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")
BATCHES = [1, 3, 16, 100]


def image(batch, channels=5, height=7, width=6, hwcn=True):
    x = torch.randn(height, width, channels, batch).permute(3, 2, 0, 1)
    return (x if hwcn else x.contiguous()).mul(2).add(30).requires_grad_()  # far from zero: squares would cancel


def agree(y, expected, inputs):
    grad = torch.randn_like(expected)
    assert is_hwcn(y)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    for a, b in zip(torch.autograd.grad(y, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("hwcn", [True, False])
def test_native_batch_norm(isa, batch, hwcn):
    x = image(batch, hwcn=hwcn)
    weight, bias = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    y, (mean, variance) = norm.batch_norm(x, weight, bias, 1e-5)
    torch.testing.assert_close(mean, x.mean((0, 2, 3)))
    torch.testing.assert_close(variance, x.var((0, 2, 3), correction=0), rtol=1e-4, atol=1e-4)
    agree(y, F.batch_norm(x, None, None, weight, bias, training=True), (x, weight, bias))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    ("kernel", "stride", "pad"), [((2, 2), (2, 2), (0, 0)), ((3, 2), (2, 1), (1, 1)), ((1, 3), (3, 2), (0, 1))]
)
def test_native_pooling(isa, batch, kernel, stride, pad):
    x = image(batch)
    window = [*kernel, *stride, *pad]
    agree(pooling.max_pool2d(x, window), F.max_pool2d(x, kernel, stride, pad), (x,))
    for counts in (True, False):
        expected = F.avg_pool2d(x, kernel, stride, pad, count_include_pad=counts)
        agree(pooling.avg_pool2d(x, window, counts), expected, (x,))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_fuzzed_activations_stay_inside_their_memory(data):
    """The results are right; that nothing outside is touched is what the sanitizers watch (``make sanitize``)."""
    small = st.integers(1, 4)
    kernel, stride = ((data.draw(small), data.draw(small)) for _ in range(2))
    pad = tuple(data.draw(st.integers(0, k // 2)) for k in kernel)
    height, width = (max(k - 2 * p, 1) + data.draw(st.integers(0, 6)) for k, p in zip(kernel, pad, strict=True))
    batch, channels = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 9))
    x, counts = image(batch, channels, height, width), data.draw(st.booleans())
    weight, bias = torch.randn(channels, requires_grad=True), torch.randn(channels, requires_grad=True)
    window = [*kernel, *stride, *pad]
    for isa in library.available():
        with library.use(library.load(isa)):
            agree(pooling.max_pool2d(x, window), F.max_pool2d(x, kernel, stride, pad), (x,))
            expected = F.avg_pool2d(x, kernel, stride, pad, count_include_pad=counts)
            agree(pooling.avg_pool2d(x, window, counts), expected, (x,))
            if x.numel() // channels > 4:  # the gradient of a norm over a few numbers is mostly rounding
                expected = F.batch_norm(x, None, None, weight, bias, training=True)
                agree(norm.batch_norm(x, weight, bias, 1e-5)[0], expected, (x, weight, bias))


def test_native_max_pool_ties_go_to_the_first_and_nan_wins(isa):
    x = torch.tensor([[[[1.0, 1.0], [float("nan"), 0.0]]]], requires_grad=True)
    y = pooling.max_pool2d(x, [1, 2, 1, 2, 0, 0])
    assert y[0, 0, 0, 0] == 1
    assert y[0, 0, 1, 0].isnan()
    assert torch.autograd.grad(y.sum(), x)[0].flatten().tolist() == [1, 0, 1, 0]


def test_registered_operators_are_sound():
    x = image(3).detach()
    torch.library.opcheck(norm.operator, (x, torch.ones(5), torch.zeros(5), 1e-5))
    torch.library.opcheck(pooling.max_pool2d, (x, [2, 2, 2, 2, 0, 0]))
    torch.library.opcheck(pooling.avg_pool2d, (x, [2, 2, 2, 2, 0, 0], True))


@pytest.mark.parametrize("batch", BATCHES)
def test_native_batch_norm_with_relu6_stops_the_gradient_at_both_ends(isa, batch):
    torch.manual_seed(batch)
    x = image(batch)
    weight, bias = torch.full((5,), 8.0, requires_grad=True), torch.full((5,), 3.0, requires_grad=True)
    y, _ = norm.batch_norm(x, weight, bias, 1e-5, relu_limit=6.0)
    normed = F.batch_norm(x, None, None, weight, bias, training=True)
    # Rounding may put no value on the other side of an end.
    assert all((normed - end).abs().min() > 3e-5 for end in (0, 6))
    expected = F.relu6(normed)
    assert ((expected == 6).any() and (expected == 0).any()) or batch == 1
    agree(y, expected, (x, weight, bias))


@pytest.mark.parametrize("count", [1, 15, 4096, 4097])
def test_native_sum_and_relu_of_any_length(isa, count):
    generator = torch.Generator().manual_seed(count)
    x, other = (torch.randn(count, generator=generator) * 9 for _ in range(2))
    torch.testing.assert_close(relu.add_relu(x, other, 6.0), (x + other).clamp(0, 6), rtol=0, atol=0)
    torch.testing.assert_close(relu.add_relu(x, None, math.inf), x.relu(), rtol=0, atol=0)
