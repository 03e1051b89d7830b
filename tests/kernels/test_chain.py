"""Chains of stages, and what the kernels do for them, against torch in double precision."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.cases import agree, draw, geometries, through_torch
from tests.kernels.stage_by_stage import StageByStage, hwcn

from rewire.kernels import library
from rewire.kernels.batch import conv, norm, ops
from rewire.kernels.batch.chain import StageTensors, run_chain
from rewire.kernels.batch.chain_plan import Stage
from rewire.kernels.geometry import Geometry

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")
CASES = list(geometries())


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


def residual_and_pooled(batch=32, limit=6.0, density=0.4, seed=0):
    """Two stages and a projection that are summed, then a pooled stage, which reads the sum."""
    generator = torch.Generator().manual_seed(seed)
    square, wide = Geometry((6, 6, 3, 3), padding=(1, 1)), Geometry((6, 4, 3, 3), padding=(1, 1))
    stages = [
        Stage(0, wide, 1e-5, math.inf),
        Stage(1, square, 1e-5),
        Stage(0, Geometry((6, 4, 1, 1)), 1e-3, limit, addend=2),
        Stage(3, square, 1e-5, math.inf, pool=True),
    ]
    tensors = [stage_tensors(stage.geometry, density, True, generator) for stage in stages]
    return torch.randn(batch, 4, 8, 8, generator=generator).requires_grad_(), stages, tensors


@pytest.mark.parametrize("batch", [2, 16, 32, 37])
@pytest.mark.parametrize("limit", [6.0, math.inf])
def test_native_chain_of_a_residual_block_and_a_pooled_one(isa, batch, limit):
    check(*residual_and_pooled(batch, limit))


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


def same_bits(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


def drawn_chain(data):
    """Stages of any kind that follow each other, on activations of few sizes, and the order of their positions."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    shapes, stages, tensors = [(data.draw(st.integers(1, 6)), *data.draw(st.sampled_from([(8, 8), (5, 6)])))], [], []
    batch = data.draw(st.sampled_from([1, 3, 16, 33, 48]))
    x = torch.randn(batch, *shapes[0], generator=generator)
    for index in range(data.draw(st.integers(1, 5))):
        channels, height, width = shapes[index]
        stride, kernel = data.draw(st.sampled_from([1, 1, 1, 2])), data.draw(st.sampled_from([1, 3]))
        shape = (data.draw(st.sampled_from([channels, channels, 5])), channels, kernel, kernel)
        geometry = Geometry(shape, (stride, stride), (kernel // 2, kernel // 2))
        after = (shape[0], *geometry.output(height, width))
        addend = data.draw(st.sampled_from([None, *(i for i, other in enumerate(shapes) if other == after)]))
        poolable = addend is None and after[1] % 2 == after[2] % 2 == 0
        pool = poolable and data.draw(st.booleans())
        # The reference takes the gradient of a ReLU behind a sum in a pass of its own. Where less than a vector is left
        # of the batch, the compiler may round products in one of the two passes and not in the other.
        limits = [-1.0] if addend is not None and batch % 16 else [-1.0, 6.0, math.inf]
        stages.append(Stage(index, geometry, 1e-3, data.draw(st.sampled_from(limits)), addend, pool))
        shapes.append((after[0], after[1] // 2, after[2] // 2) if pool else after)
        own = stage_tensors(geometry, data.draw(st.sampled_from([0.2, 1.0])), data.draw(st.booleans()), generator)
        if data.draw(st.booleans()):
            own = own._replace(positions=own.positions[torch.randperm(len(own.positions), generator=generator)].long())
        tensors.append(own)
    return x, stages, tensors


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_fuzzed_chains_have_the_bits_of_their_kernels_one_by_one(data):
    """Output, moments and gradients, with any of them left out, on one thread and on two."""
    x, stages, tensors = drawn_chain(data)
    x.requires_grad_(data.draw(st.booleans()))
    trained = leaves(x, tensors)
    for tensor in trained[1:]:
        tensor.requires_grad_(data.draw(st.sampled_from([True, True, False])))
    trained[-1].requires_grad_()
    needed = [tensor for tensor in trained if tensor.requires_grad]
    before = torch.get_num_threads()
    torch.set_num_threads(data.draw(st.sampled_from([1, 2])))
    for isa in library.available():
        with library.use(library.load(isa)):
            y, moments = run_chain(x, stages, tensors)
            reference = StageByStage(x, stages, tensors)
            same_bits([y, *sum(moments, ())], [reference.activations[-1], *sum(reference.moments, ())])
            grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
            every = reference.gradients(grad)
            expected = [every[0], *(g for g in every[1:] if g is not None)]
            expected = [g for g, tensor in zip(expected, trained, strict=True) if tensor.requires_grad]
            same_bits(torch.autograd.grad(y, needed, grad), expected)
    torch.set_num_threads(before)


@pytest.mark.parametrize("density", [0.4, 1.0])  # sparse, and as dense blocks
def test_native_chain_has_the_bits_of_its_kernels_one_by_one(isa, density):
    x, stages, tensors = residual_and_pooled(density=density)
    y, reference = run_chain(x, stages, tensors)[0], StageByStage(x, stages, tensors)
    grad = torch.ones_like(y).cumsum(1)
    same_bits(
        [y, *torch.autograd.grad(y, leaves(x, tensors), grad)], [reference.activations[-1], *reference.gradients(grad)]
    )


class Counting:
    """A library that notes the names of the functions that are called."""

    def __init__(self, wrapped):
        self.wrapped, self.called = wrapped, []

    def __getattr__(self, name):
        self.called.append(name)
        return getattr(self.wrapped, name)


def test_native_calls_of_a_chain_are_one_forward_and_one_backward(isa):
    x, stages, tensors = residual_and_pooled()
    run_chain(x, stages, tensors)  # makes the plans
    counting = Counting(isa)
    with library.use(counting):
        run_chain(x, stages, tensors)[0].sum().backward()
    assert counting.called == ["rewire_chain_forward", "rewire_chain_backward"]


def test_native_chain_whose_saved_tensors_were_moved_to_another_layout(isa):
    x, stages, tensors = residual_and_pooled()
    expected = torch.autograd.grad(run_chain(x, stages, tensors)[0].square().sum(), leaves(x, tensors))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone().contiguous(), lambda t: t):
        y = run_chain(x, stages, tensors)[0]
    same_bits(torch.autograd.grad(y.square().sum(), leaves(x, tensors)), expected)


def test_native_chain_backward_leaves_the_gradient_that_comes_in_alone(isa):
    """Without a ReLU behind the sum, it is the gradient of the addend as well."""
    generator, geometry = torch.Generator().manual_seed(0), Geometry((4, 4, 3, 3), padding=(1, 1))
    stages = [Stage(0, geometry, 1e-5, math.inf), Stage(1, geometry, 1e-5, addend=0)]
    tensors = [stage_tensors(geometry, 0.5, False, generator) for _ in stages]
    x = hwcn(torch.randn(16, 4, 6, 6, generator=generator)).requires_grad_()
    y = run_chain(x, stages, tensors)[0]
    grad = hwcn(torch.randn(y.shape, generator=generator))
    before = grad.clone()
    same_bits(torch.autograd.grad(y, x, grad), StageByStage(x, stages, tensors).gradients(before)[:1])
    assert torch.equal(grad, before)


def test_a_chain_refuses_what_native_code_cannot_read():
    x, stages, tensors = residual_and_pooled()
    for wrong, message in (
        (x[:0], r"N > 0, not \(0, 4, 8, 8\)"),
        (x[0], r"N, C, H, W activations with N > 0, not \(4, 8, 8\)"),
        (x[:, :3], "stage 0 reads 4 channels, but activation 0 has 3"),
        (x.double(), "float32 tensors on the CPU, not .'torch.float64 on cpu'"),
    ):
        with pytest.raises(ValueError, match=message):
            run_chain(wrong, stages, tensors)
    first = tensors[0]
    for wrong, message in (
        (first._replace(weight=first.weight[:-1]), r"have the shape \(6,\), not \[\(6,\), \(5,\), \(6,\)\]"),
        (first._replace(conv_bias=first.conv_bias.double()), "'torch.float64 on cpu'"),
        (first._replace(values=first.values[:-1]), "every value needs its position"),
    ):
        with pytest.raises(ValueError, match=message):
            run_chain(x, stages, [wrong, *tensors[1:]])
    for changed, message in (
        (stages[0]._replace(source=1), "stage 0 can read the activations 0 to 0, but it reads 1 and adds None"),
        (stages[0]._replace(addend=0), r"adds activations of the shapes \(6, 8, 8\) and \(4, 8, 8\)"),
    ):
        with pytest.raises(ValueError, match=message):
            run_chain(x, [changed, *stages[1:]], tensors)
    with pytest.raises(ValueError, match=r"nothing reads \[2\]"):
        run_chain(x, [*stages[:2], stages[2]._replace(addend=None), stages[3]], tensors)
