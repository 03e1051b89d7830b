"""Chains of stages, and what the kernels do for them, against torch in double precision."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.cases import agree, draw, geometries, through_torch

from rewire.kernels import library
from rewire.kernels.batch import conv, norm, ops
from rewire.kernels.batch.chain import Stage, StageTensors, run_chain
from rewire.kernels.geometry import Geometry, to_hwcn

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")
CASES = list(geometries())


def hwcn(x):
    return to_hwcn(x).permute(3, 2, 0, 1)


@pytest.mark.parametrize("batch", [1, 3, 32, 100])
@pytest.mark.parametrize("density", [0.3, 0.9])  # sparse, and as dense blocks
@pytest.mark.parametrize("in_place", [False, True])
def test_native_gradient_of_the_input_plus_another(isa, batch, density, in_place, monkeypatch):
    """The addend may be the array that the gradient is written to."""
    for geometry, (height, width) in CASES[::17]:
        x, values, positions, _ = draw(geometry, (height + 3, width + 5), batch, density=density)
        y = through_torch(x, values, positions, None, geometry)
        grad, addend = torch.randn_like(y), hwcn(torch.randn_like(x))
        expected = torch.autograd.grad(y, (x, values), grad)
        total = expected[0] + addend
        if in_place:
            monkeypatch.setattr(conv, "empty_hwcn", lambda *_, found=addend: found)
        found = conv.backward(grad, x.detach(), values.detach(), positions, geometry, (True, True), addend)
        monkeypatch.undo()
        agree(found, [total, expected[1]], 1e-4)


@pytest.mark.parametrize("batch", [2, 16, 37])
@pytest.mark.parametrize("limit", [6.0, math.inf])
def test_native_norm_sum_and_relu(isa, batch, limit):
    x, other = (hwcn(torch.randn(batch, 5, 4, 3)).requires_grad_() for _ in range(2))
    weight, bias = torch.full((5,), 4.0, requires_grad=True), torch.full((5,), 2.0, requires_grad=True)
    known = norm.moments(x.detach())
    y = norm.forward(x.detach(), weight.detach(), bias.detach(), known, 1e-5, limit, addend=other.detach())
    inputs = [t.detach().double().requires_grad_() for t in (other, x, weight, bias)]
    exact = (F.batch_norm(inputs[1], None, None, *inputs[2:], training=True) + inputs[0]).clamp(0, limit)
    agree([y], [exact], 1e-5)
    grad = torch.randn_like(y)
    tensors = (x.detach(), weight.detach(), bias.detach())
    found = norm.backward_add_relu(grad, y, *tensors, known, 1e-5, limit)
    agree(found, torch.autograd.grad(exact, inputs, grad.double()), 1e-4)


def through_torch_chain(x, stages, tensors):
    """The same in plain torch; the moments do not matter."""
    activations = [x]
    for stage, own in zip(stages, tensors, strict=True):
        z = through_torch(activations[stage.source], own.values, own.positions, own.conv_bias, stage.geometry)
        y = F.batch_norm(z, None, None, own.weight, own.bias, training=True, eps=stage.eps)
        y = y if stage.addend is None else y + activations[stage.addend]
        y = y if stage.relu_limit < 0 else y.clamp(0, stage.relu_limit)
        activations.append(F.max_pool2d(y, 2) if stage.pool else y)
    return activations[-1]


def through_operators(x, stages, tensors):
    """The same with one autograd node for each convolution, batch norm, sum and ReLU."""
    activations = [x]
    for stage, own in zip(stages, tensors, strict=True):
        source = activations[stage.source]
        moments = torch.empty_like(own.weight), torch.empty_like(own.weight)
        z = ops.sparse_conv2d(source, own.values, own.positions, own.conv_bias, stage.geometry, moments=moments)
        y, _ = norm.batch_norm(z, own.weight, own.bias, stage.eps, known=moments)
        y = y if stage.addend is None else y + activations[stage.addend]
        activations.append(y if stage.relu_limit < 0 else F.hardtanh(y, 0, stage.relu_limit))
    return activations[-1]


def doubled(tensors):
    """The tensors of all stages in double precision, positions apart."""

    def exact(tensor):
        is_position = tensor is None or not tensor.is_floating_point()
        return tensor if is_position else tensor.detach().double().requires_grad_()

    return [StageTensors(*map(exact, stage)) for stage in tensors]


def leaves(x, tensors):
    return [x, *(t for stage in tensors for t in stage[:4] if t is not None)]


def stage_tensors(geometry, density, with_bias, generator):
    count = max(1, round(density * geometry.numel))
    positions = torch.randperm(geometry.numel, generator=generator)[:count].sort().values.int()
    rows = geometry.shape[0]
    values, bias = torch.randn(count, generator=generator), torch.randn(rows, generator=generator)
    weight, norm_bias = torch.rand(rows, generator=generator) + 0.5, torch.randn(rows, generator=generator)
    trained = [t.requires_grad_() for t in (values, bias, weight, norm_bias)]
    return StageTensors(trained[0], trained[1] if with_bias else None, trained[2], trained[3], positions)


def test_native_chain_of_a_residual_block_and_a_pooled_one(isa):
    """Two stages and a projection that are summed, then a pooled stage, which reads the sum."""
    generator = torch.Generator().manual_seed(0)
    square, wide = Geometry((6, 6, 3, 3), padding=(1, 1)), Geometry((6, 4, 3, 3), padding=(1, 1))
    stages = [
        Stage(0, wide, 1e-5, math.inf),
        Stage(1, square, 1e-5),
        Stage(0, Geometry((6, 4, 1, 1)), 1e-3, 6.0, addend=2),
        Stage(3, square, 1e-5, math.inf, pool=True),
    ]
    tensors = [stage_tensors(stage.geometry, 0.4, True, generator) for stage in stages]
    x = torch.randn(32, 4, 8, 8, generator=generator).requires_grad_()
    check(x, stages, tensors)


def check(x, stages, tensors):
    y, moments = run_chain(x, stages, tensors)
    assert len(moments) == len(stages)
    exact_x, exact = x.detach().double().requires_grad_(), doubled(tensors)
    expected = through_torch_chain(exact_x, stages, exact)
    agree([y], [expected], 1e-3)
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, leaves(x, tensors), grad)
    agree(found, torch.autograd.grad(expected, leaves(exact_x, exact), grad.double()), 2e-3)
    with torch.no_grad():
        assert torch.equal(run_chain(x, stages, tensors)[0], y)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_fuzzed_chains(data):
    """Stages that read any earlier activation of their size, and add any other; results stay right in their memory."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    channels, batch = data.draw(st.integers(1, 7)), data.draw(st.integers(5, 70))
    size = data.draw(st.integers(3, 9)), data.draw(st.integers(3, 9))
    stages, tensors = [], []
    for index in range(data.draw(st.integers(1, 4))):
        kernel = data.draw(st.sampled_from([1, 3]))
        groups = data.draw(st.sampled_from([1, channels]))
        geometry = Geometry((channels, channels // groups, kernel, kernel), padding=(kernel // 2,) * 2, groups=groups)
        addend = data.draw(st.sampled_from([None, *range(index + 1)]))
        limit = data.draw(st.sampled_from([-1.0, 6.0, math.inf]))
        stages.append(Stage(index, geometry, 1e-3, limit, addend))  # each reads the last, so all are read
        tensors.append(stage_tensors(geometry, data.draw(st.sampled_from([0.2, 1.0])), False, generator))
    x = torch.randn(batch, channels, *size, generator=generator).requires_grad_()
    for isa in library.available():
        with library.use(library.load(isa)):
            y, expected = run_chain(x, stages, tensors)[0], through_operators(x, stages, tensors)
            agree([y], [expected], 1e-4)
            grads = [torch.autograd.grad(t, leaves(x, tensors), torch.ones_like(y).cumsum(1)) for t in (y, expected)]
            of_values = slice(
                1, None, 3
            )  # batch norm cancels most of these: what is left is small, its rounding is not
            agree(grads[0][of_values], grads[1][of_values], 1e-2)
            agree(*([grad[0], *grad[2::3], *grad[3::3]] for grad in grads), 1e-3)
