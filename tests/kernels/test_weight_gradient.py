"""The gradient of dense weights, which rewirings rank: every way to compute it against torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.cases import geometries

from rewire.kernels.batch import weight_gradient as ways
from rewire.kernels.batch.winograd import WinogradGradient
from rewire.kernels.geometry import Geometry


def expected(x, grad, geometry):
    """In float64."""
    g = geometry
    return torch.nn.grad.conv2d_weight(
        x.double(), g.shape, grad.double(), g.stride, g.padding, g.dilation, g.groups
    ).flatten()


def pair(geometry, batch, height, width, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, geometry.inputs, height, width, generator=generator, dtype=dtype)
    return x, torch.randn(batch, geometry.shape[0], *geometry.output(height, width), generator=generator, dtype=dtype)


def in_rows(gradient, geometry, rows):
    bounds = range(0, geometry.shape[0], rows)
    return torch.cat([gradient.rows(slice(at, min(at + rows, geometry.shape[0]))) for at in bounds])


def close(found, exact, tolerance):
    assert found.shape == exact.shape
    assert float((found.double() - exact).abs().max()) <= tolerance * max(float(exact.abs().max()), 1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_geometry(dtype):
    """Whichever way is chosen, for whole groups of output channels at a time."""
    for geometry, size in geometries():
        x, grad = pair(geometry, 3, *size, dtype=dtype)
        found = in_rows(ways.weight_gradient(x, grad, geometry), geometry, geometry.shape[0] // geometry.groups)
        close(found, expected(x, grad, geometry), 1e-5 if dtype == torch.float32 else 1e-12)


def test_each_layer_is_computed_in_its_way():
    def way(shape, size, batch=64, dtype=torch.float32, **options):
        geometry = Geometry(shape, **options)
        return type(ways.weight_gradient(*pair(geometry, batch, *size, dtype=dtype), geometry))

    assert way((8, 5, 1, 1), (1, 1)) is ways.LinearGradient
    assert way((16, 16, 3, 3), (8, 8), padding=(1, 1)) is WinogradGradient
    assert way((16, 16, 3, 3), (8, 8), padding=(1, 1), batch=1) is ways.TapGradient  # too small to pay
    assert way((16, 16, 3, 3), (8, 8), padding=(1, 1), stride=(2, 2)) is ways.TapGradient
    assert way((16, 3, 3, 3), (8, 8), padding=(1, 1)) is ways.TapGradient
    assert way((16, 4, 3, 3), (8, 8), padding=(1, 1), groups=4) is ways.TorchGradient
    assert way((16, 16, 3, 3), (8, 8), padding=(1, 1), dtype=torch.float64) is ways.TorchGradient


@given(
    outputs=st.integers(1, 9),
    inputs=st.integers(1, 9),
    height=st.integers(1, 13),
    width=st.integers(1, 13),
    pads=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    batch=st.sampled_from([1, 3, 7, 8, 16, 19, 33]),
    rows=st.integers(1, 9),
    chunk=st.sampled_from([1, 1 << 14, 1 << 24]),
)
@settings(max_examples=60, deadline=None)
def test_native_winograd_of_any_size(outputs, inputs, height, width, pads, batch, rows, chunk):
    geometry = Geometry((outputs, inputs, 3, 3), padding=pads)
    if min(height + 2 * pads[0], width + 2 * pads[1]) < 3:
        return
    x, grad = pair(geometry, batch, height, width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rewire.kernels.batch.winograd.CHUNK_BYTES", chunk)
        found = in_rows(WinogradGradient(x, grad, geometry), geometry, rows)
    close(found, expected(x, grad, geometry), 2e-5)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("batch", [1, 5, 16, 37])
def test_native_winograd_with_every_instruction_set(batch):
    geometry = Geometry((5, 6, 3, 3), padding=(1, 1))
    x, grad = pair(geometry, batch, 10, 7)
    close(WinogradGradient(x, grad, geometry).rows(slice(0, 5)), expected(x, grad, geometry), 1e-5)


def test_native_winograd_by_hand():
    """One pixel of the input and one of the gradient meet in one tap: here in the upper left one."""
    geometry = Geometry((1, 1, 3, 3), padding=(1, 1))
    x, grad = torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4)
    x[0, 0, 1, 1], grad[0, 0, 2, 2] = 3.0, 5.0
    found = WinogradGradient(x, grad, geometry).rows(slice(0, 1))
    torch.testing.assert_close(found, torch.tensor([15.0, 0, 0, 0, 0, 0, 0, 0, 0]), rtol=0, atol=1e-4)


def test_rounding_errors_of_winograd_are_small():
    """The root mean square error against float64, in units of the gradient's own: far below what decides a ranking."""
    geometry = Geometry((32, 32, 3, 3), padding=(1, 1))
    x, grad = pair(geometry, 64, 16, 16)
    x = x.relu()
    exact = expected(x, grad, geometry)
    error = WinogradGradient(x, grad, geometry).rows(slice(0, 32)).double() - exact
    assert float(error.norm() / exact.norm()) < 1e-5
