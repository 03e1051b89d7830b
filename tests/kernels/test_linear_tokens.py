"""Token-major linear layers: both passes against torch in float64, for every instruction set."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rewire.kernels import library
from rewire.kernels.batch.activation import IDENTITY, Activation, Kind
from rewire.kernels.batch.linear import linear_tokens

ISAS = library.available()
pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built")
ACTIVATIONS = [
    IDENTITY,
    Activation(Kind.RELU),
    Activation(Kind.RELU, 6.0),
    Activation(Kind.GELU),
    Activation(Kind.GELU_TANH),
    Activation(Kind.SILU),
]


def draw(tokens, inputs, outputs, density=0.3, seed=0):
    """Input, values, sorted positions and bias."""
    generator = torch.Generator().manual_seed(seed)
    count = round(density * inputs * outputs)
    positions = torch.randperm(inputs * outputs, generator=generator)[:count].sort()[0].int()
    return (
        torch.randn(*tokens, inputs, generator=generator),
        torch.randn(count, generator=generator),
        positions,
        torch.randn(outputs, generator=generator),
    )


def exact(x, values, positions, bias, shape, inputs_first, activation, dtype):
    """The output, with the slope of the activation function where the kernel takes it: at its input as ``dtype``."""
    weight = values.new_zeros(math.prod(shape)).index_put((positions.long(),), values).view(shape)
    y = x @ (weight if inputs_first else weight.t())
    y = y if bias is None else y + bias
    from_kept = activation(y + (y.to(dtype).double() - y).detach())
    return from_kept + (activation(y) - from_kept).detach()


def compare(x, values, positions, bias, shape, inputs_first=False, activation=IDENTITY, tolerance=2e-6):
    """Output and gradients of the kernel and of torch in float64; errors as a share of the largest element."""
    ours = [t if t is None else t.detach().clone().requires_grad_() for t in (x, values, bias)]
    ours[0] = x.detach().requires_grad_()  # with the strides that it was given
    theirs = [t if t is None else t.detach().double().requires_grad_() for t in (x, values, bias)]
    y = linear_tokens(ours[0], ours[1], positions, ours[2], shape, inputs_first, activation, dtype=x.dtype)
    expected = exact(theirs[0], theirs[1], positions, theirs[2], shape, inputs_first, activation, x.dtype)
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    y.backward(grad)
    expected.backward(grad.double())
    agree(y, expected, tolerance)
    for one, other in zip(ours, theirs, strict=True):
        if one is not None:
            assert one.grad.dtype == one.dtype
            agree(one.grad, other.grad, tolerance)


def agree(found, expected, tolerance):
    found, expected = found.detach(), expected.detach()
    assert found.shape == expected.shape
    scale = max(float(expected.abs().max()), 1.0) if expected.numel() else 1.0
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("inputs_first", [False, True])
def test_native_activations_and_both_orders_of_the_weight(isa, activation, inputs_first):
    x, values, positions, bias = draw((3, 37), 20, 33)
    compare(x, values, positions, bias, (20, 33) if inputs_first else (33, 20), inputs_first, activation)


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 63, 64, 65, 130])
def test_native_odd_numbers_of_tokens(isa, tokens):
    for inputs, outputs in ((1, 1), (16, 17), (31, 48)):
        x, values, positions, bias = draw((tokens,), inputs, outputs, density=0.5)
        compare(x, values, positions, bias, (outputs, inputs), activation=Activation(Kind.GELU))


def test_native_threads_add_up_the_same_gradients(isa):
    layer = draw((500,), 64, 96)
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        compare(*layer, (96, 64), activation=Activation(Kind.SILU))
    torch.set_num_threads(before)


def test_native_inputs_that_are_not_contiguous(isa):
    x, values, positions, bias = draw((4, 40), 24, 10)
    wide = torch.randn(4, 41, 30)
    batch_innermost = x.transpose(1, 2).contiguous().transpose(1, 2)
    for strided in (wide[:, 1:, 3:27], x.transpose(0, 1), batch_innermost, x[:1].expand(3, 40, 24)):
        compare(strided, values, positions, bias, (10, 24))


def test_native_gradients_of_any_strides(isa):
    x, values, positions, bias = (t.requires_grad_() if t.is_floating_point() else t for t in draw((4, 40), 24, 10))
    y = linear_tokens(x, values, positions, bias, (10, 24))
    every_second = torch.randn(4, 40, 20)[..., ::2]
    for grad in (torch.ones(()).expand(4, 40, 10), torch.randn(10, 40, 4).permute(2, 1, 0), every_second):
        strided = torch.autograd.grad(y, (x, values, bias), grad, retain_graph=True)
        plain = torch.autograd.grad(y, (x, values, bias), grad.contiguous(), retain_graph=True)
        assert all(map(torch.equal, strided, plain))


def test_native_edges(isa):
    """No tokens, no non-zeros, no bias, 64-bit positions, positions that are not sorted, some gradients only."""
    x, values, positions, bias = draw((2, 19), 12, 9)
    compare(x[:0], values, positions, bias, (9, 12))
    compare(x, values[:0], positions[:0], bias, (9, 12))
    compare(x, values, positions, None, (9, 12), activation=Activation(Kind.GELU))
    compare(x, values, positions.long(), bias, (9, 12))
    compare(x, values, positions.long(), bias, (12, 9), inputs_first=True)
    order = torch.randperm(len(positions))
    compare(x, values, positions[order], bias, (9, 12))
    for needed in itertools.product((False, True), repeat=3):
        leaves = [t.clone().requires_grad_(need) for t, need in zip((x, values, bias), needed, strict=True)]
        y = linear_tokens(leaves[0], leaves[1], positions, leaves[2], (9, 12))
        assert y.requires_grad == any(needed)
        if any(needed):
            y.sum().backward()
            assert [t.grad is not None for t in leaves] == list(needed)


# Without ReLU6: what is rounded up to 6 has no slope any more, in torch as well.
IN_BFLOAT16 = [one for one in ACTIVATIONS if one.limit != 6.0]


@pytest.mark.parametrize("activation", IN_BFLOAT16, ids=str)
def test_native_bfloat16_activations_with_float32_sums(isa, activation):
    """Inputs are exact bfloat16 numbers, so what is left is one rounding of each result."""
    x, values, positions, bias = draw((3, 50), 70, 40)
    compare(x.bfloat16(), values, positions, bias, (40, 70), activation=activation, tolerance=2**-8)
    narrow = linear_tokens(x.bfloat16(), values, positions, bias, (40, 70), dtype=torch.bfloat16)
    wide = linear_tokens(x.bfloat16().float(), values, positions, bias, (40, 70))
    assert torch.equal(narrow, wide.bfloat16())  # rounded once, to the nearest
    x, *constant = draw((130,), 1, 1, density=0, seed=1)  # every token has the same slope, whose rounding adds up
    compare(x.bfloat16(), *constant, (1, 1), activation=activation, tolerance=2**-8)


def test_native_not_a_number_and_infinity_pass(isa):
    x = torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [-math.inf, 1.0], [0.0, 1.0]])
    values, positions = torch.tensor([1.0]), torch.tensor([0], dtype=torch.int32)
    for activation in (IDENTITY, Activation(Kind.RELU), Activation(Kind.GELU), Activation(Kind.SILU)):
        for dtype in (torch.float32, torch.bfloat16):
            y = linear_tokens(x, values, positions, None, (1, 2), activation=activation, dtype=dtype)
            assert y[0].isnan()
            assert y[1] == math.inf
            assert y[3] == 0


def test_native_activation_functions_over_their_whole_range(isa):
    """Absolute errors of a few units in the last place of the larger of 1 and |x|, slopes included."""
    special = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e4, -1e4, 90.0, -90.0])
    x = torch.cat([torch.linspace(-30, 30, 20001), special])[:, None]
    one, position = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    for activation in ACTIVATIONS:
        ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
        y, expected = linear_tokens(ours, one, position, None, (1, 1), activation=activation), activation(theirs)
        y.sum().backward()
        expected.sum().backward()
        scale = x.abs().clamp(min=1)
        assert float(((y - expected).detach().abs() / scale).max()) < 3e-7, activation
        assert float((ours.grad - theirs.grad).abs().max()) < 1e-6, activation


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_fuzzed_token_shapes_stay_inside_their_memory(data):
    """The results are right; that nothing outside is touched is what the sanitizers watch (``make sanitize``)."""
    inputs, outputs = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70))
    tokens = data.draw(st.integers(0, 140))
    layer = draw((tokens,), inputs, outputs, data.draw(st.floats(0, 1)), data.draw(st.integers(0, 9)))
    inputs_first, activation = data.draw(st.booleans()), data.draw(st.sampled_from(ACTIVATIONS))
    shape = (inputs, outputs) if inputs_first else (outputs, inputs)
    for isa in ISAS:
        with library.use(library.load(isa)):
            compare(*layer, shape, inputs_first, activation, tolerance=1e-5)
            if activation in IN_BFLOAT16:
                narrow = (layer[0].bfloat16(), *layer[1:])
                compare(*narrow, shape, inputs_first, activation, tolerance=2**-7)
