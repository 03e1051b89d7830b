"""Convolutions through windows: whole tiles of the batch on maps that are wide enough, in every geometry."""

import math

import pytest
import torch
from tests.kernels.cases import agree, compare, draw, geometries, run, through_operator

from rewire.kernels import library
from rewire.kernels.batch import ops
from rewire.kernels.geometry import Geometry

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")
WIDE = [(geometry, (size[0] + 2, size[1] + 11)) for geometry, size in geometries()]
PADDED = Geometry((12, 6, 3, 3), padding=(1, 1))


@pytest.fixture(autouse=True, params=library.available())
def isa(request, monkeypatch):
    loaded = library.load(request.param)
    monkeypatch.setattr(ops, "native", lambda: loaded)


@pytest.mark.parametrize("batch", [32, 96])
def test_native_windows_in_every_geometry(batch):
    """Output, moments and gradients against dense torch; two tiles of AVX2 and one of AVX-512 at least."""
    for index, (geometry, size) in enumerate(WIDE if batch == 32 else WIDE[::7]):
        compare(geometry, size, batch, density=0.25, limit=(-1.0, 0.5, math.inf)[index % 3], seed=index)


@pytest.mark.parametrize("width", range(1, 14))
def test_native_windows_of_any_width(width):
    """Groups that the map's edge cuts short, maps too narrow for a group, more lines than one group has."""
    for stride in (1, 2, 3):
        compare(Geometry((5, 3, 3, 3), (stride, stride), (1, 1)), (19, width), 32, density=0.3)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_native_windows_and_the_direct_way_agree(threads):
    """One sample more and the batch is no longer made of whole tiles: the first ones must not notice."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    for geometry, size in (
        (Geometry((40, 300, 3, 3), padding=(1, 1)), (9, 9)),  # several blocks of channels, several groups of lines
        (Geometry((40, 300, 1, 1)), (6, 6)),
        (Geometry((300, 40, 3, 3), (2, 2), (1, 1)), (4, 4)),  # so few groups that threads share out rows
        (Geometry((64, 1, 3, 3), padding=(1, 1), groups=64), (8, 8)),
    ):
        x, values, positions, bias = draw(geometry, size, 33, density=0.25)
        grad = torch.randn(33, geometry.shape[0], *geometry.output(*size))
        grad[32] = 0  # so that the weights' gradients are those of the first ones
        direct = run(through_operator, x, values, positions, bias, geometry, grad)
        fewer = x[:32].detach().requires_grad_()
        windows = run(through_operator, fewer, values, positions, bias, geometry, grad[:32])
        agree(windows, [direct[0][:32], direct[1][:32], *direct[2:]], 1e-5)
    torch.set_num_threads(before)


def test_native_columns_outside_of_the_map_count_as_zeros():
    """On a map of ones, a kernel whose four corners are ones counts those of them that lie on the map."""
    geometry = Geometry((1, 1, 3, 3), padding=(1, 1))
    y = ops.sparse_conv2d(torch.ones(32, 1, 5, 6), torch.ones(4), torch.tensor([0, 2, 6, 8]), None, geometry)
    corners = torch.tensor([1.0, 2, 2, 2, 2, 1])
    for sample in y[:, 0]:
        torch.testing.assert_close(sample, torch.stack([corners, 2 * corners, 2 * corners, 2 * corners, corners]))
