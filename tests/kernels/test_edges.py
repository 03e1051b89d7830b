"""Unusual inputs of sparse layers: gradients that are not needed, empty batches, other memory formats, wrong shapes."""

import pytest
import torch
from tests.kernels.cases import agree, draw, run, through_operator, through_torch

from rewire.kernels import library
from rewire.kernels.geometry import Geometry, to_hwcn

GEOMETRY, SIZE = Geometry((6, 4, 3, 3), (2, 2), (1, 1)), (7, 6)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True, params=[*library.available(), "reference"])
def kernels(request):
    with library.use(None if request.param == "reference" else library.load(request.param)):
        yield


@pytest.mark.parametrize("batch", [1, 5, 16, 37])
def test_native_computes_only_the_gradients_that_are_needed(batch):
    x, values, positions, bias = draw(GEOMETRY, SIZE, batch)
    y = through_operator(x, values, positions, bias, GEOMETRY)
    grad = torch.randn_like(y)
    whole = torch.autograd.grad(y, (x, values, bias), grad)
    for needed in ((True, False, False), (False, True, False), (False, False, True), (True, False, True)):
        parts = [t.detach().requires_grad_(need) for t, need in zip((x, values, bias), needed, strict=True)]
        y = through_operator(parts[0], parts[1], positions, parts[2], GEOMETRY)
        found = torch.autograd.grad(y, [t for t, need in zip(parts, needed, strict=True) if need], grad)
        agree(found, [t for t, need in zip(whole, needed, strict=True) if need], 1e-6)


def test_native_needs_no_bias_and_no_gradient():
    x, values, positions, bias = draw(GEOMETRY, SIZE, 5)
    with torch.no_grad():
        without = through_operator(x, values, positions, None, GEOMETRY)
        agree([without], [through_torch(x, values, positions, None, GEOMETRY)], 1e-5)
        agree([without + bias[:, None, None]], [through_operator(x, values, positions, bias, GEOMETRY)], 1e-6)


def test_native_takes_an_empty_batch():
    x, values, positions, bias = draw(GEOMETRY, SIZE, 0)
    found = run(through_operator, x, values, positions, bias, GEOMETRY, torch.zeros(0, 6, 4, 3))
    assert [tuple(t.shape) for t in found] == [(0, 6, 4, 3), (0, 4, 7, 6), tuple(values.shape), (6,)]
    assert not any(t.any() for t in found[2:])


def test_native_takes_a_layer_without_any_weight():
    x, _values, _positions, bias = draw(GEOMETRY, SIZE, 5)
    values, positions = torch.zeros(0, requires_grad=True), torch.zeros(0, dtype=torch.int64)
    grad = torch.randn(5, 6, 4, 3)
    agree(
        run(through_operator, x, values, positions, bias, GEOMETRY, grad),
        [bias[:, None, None].expand(5, 6, 4, 3), torch.zeros_like(x), values, grad.sum((0, 2, 3))],
        1e-5,
    )


@pytest.mark.parametrize("form", ["hwcn", "channels_last", "strided", "flipped"])
def test_native_reads_any_memory_format(form):
    x, values, positions, bias = draw(GEOMETRY, SIZE, 5)
    expected = run(through_torch, x, values, positions, bias, GEOMETRY, torch.ones(5, 6, 4, 3))
    forms = {
        "hwcn": lambda t: to_hwcn(t).permute(3, 2, 0, 1),
        "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
        "strided": lambda t: t.repeat_interleave(2, 3)[..., ::2],
        "flipped": lambda t: t.flip(0).flip(0),
    }
    given = forms[form](x.detach()).requires_grad_()
    grad = torch.ones(()).expand(5, 6, 4, 3)  # as the gradient of a sum arrives: one number expanded
    agree(run(through_operator, given, values, positions, bias, GEOMETRY, grad), expected, 1e-5)


def test_native_nan_stays_in_its_own_sample():
    """A NaN reaches the outputs of its own sample that read it, and no others."""
    x, values, positions, bias = draw(GEOMETRY, SIZE, 37)
    with torch.no_grad():
        x[20, 1, 3, 2] = float("nan")
        bad = through_operator(x, values, positions, bias, GEOMETRY).isnan()
        assert not (bad & ~through_torch(x, values, positions, bias, GEOMETRY).isnan()).any()
        assert bad[20].any()
        assert not bad[:20].any()
        assert not bad[21:].any()


@pytest.mark.parametrize("shape", [(5, 3, 7, 6), (5, 5, 7, 6), (4, 7, 6)])
def test_an_input_that_does_not_fit_is_refused(shape):
    _x, values, positions, bias = draw(GEOMETRY, SIZE, 5)
    with pytest.raises(ValueError, match=r"the layer reads 4 channels of an N, C, H, W input, not \("):
        through_operator(torch.randn(shape), values, positions, bias, GEOMETRY)
    with pytest.raises(ValueError, match="every value needs its position"):
        through_operator(torch.randn(5, 4, 7, 6), values[1:], positions, bias, GEOMETRY)


@pytest.mark.parametrize("bad", [-1, 216])
def test_positions_outside_of_the_weight_are_refused(bad):
    if library.native() is None:
        pytest.skip("torch checks its own indices")
    x, values, positions, bias = draw(GEOMETRY, SIZE, 5)
    positions[3] = bad
    with pytest.raises(ValueError, match=r"positions must lie in \[0, 216\): "):
        through_operator(x, values, positions, bias, GEOMETRY)


def test_positions_that_are_no_integers_are_refused():
    if library.native() is None:
        pytest.skip("torch checks its own indices")
    x, values, positions, bias = draw(GEOMETRY, SIZE, 5)
    with pytest.raises(TypeError, match="32-bit or 64-bit integers, not torch.float32"):
        through_operator(x, values, positions.float(), bias, GEOMETRY)
