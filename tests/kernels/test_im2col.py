"""Convolutions with im2col tiles: batches of whole tiles on inputs that are wide enough, in every geometry."""

import math

import pytest
import torch
from tests.kernels.cases import agree, compare, draw, geometries, run, through_operator

from rewire.kernels import library
from rewire.kernels.batch import ops
from rewire.kernels.geometry import Geometry

pytestmark = [
    pytest.mark.skipif(not library.available(), reason="the native kernels are not built"),
    pytest.mark.usefixtures("isa"),
]
WIDE = [(geometry, (size[0] + 2, size[1] + 11)) for geometry, size in geometries()]
PADDED = Geometry((12, 6, 3, 3), padding=(1, 1))


@pytest.mark.parametrize("batch", [32, 96])
def test_native_tiles_in_every_geometry(batch):
    """Output, moments and gradients against dense torch; two tiles of AVX2 and one of AVX-512 at least."""
    for index, (geometry, size) in enumerate(WIDE if batch == 32 else WIDE[::7]):
        compare(geometry, size, batch, density=0.25, limit=(-1.0, 0.5, math.inf)[index % 3], seed=index)


@pytest.mark.parametrize("width", range(1, 14))
def test_native_tiles_of_any_width(width):
    """Groups that the edge cuts short, outputs and phases narrower than a group, outputs higher than a group."""
    for stride in (1, 2, 3):
        compare(Geometry((5, 3, 3, 3), (stride, stride), (1, 1)), (19, width), 32, density=0.3)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_native_im2col_and_direct_convolution_agree(threads):
    """With one sample more, the batch is not made of whole tiles: results of the others must not change."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    for geometry, size in (
        (Geometry((40, 300, 3, 3), padding=(1, 1)), (9, 9)),  # several column blocks, several groups of rows
        (Geometry((40, 300, 1, 1)), (6, 6)),
        (Geometry((300, 40, 3, 3), (2, 2), (1, 1)), (4, 4)),  # so few groups that threads split rows
        (Geometry((64, 1, 3, 3), padding=(1, 1), groups=64), (8, 8)),
    ):
        x, values, positions, bias = draw(geometry, size, 33, density=0.25)
        grad = torch.randn(33, geometry.shape[0], *geometry.output(*size))
        grad[32] = 0  # the last sample adds nothing to the gradients of the weights
        direct = run(through_operator, x, values, positions, bias, geometry, grad)
        fewer = x[:32].detach().requires_grad_()
        tiled = run(through_operator, fewer, values, positions, bias, geometry, grad[:32])
        agree(tiled, [direct[0][:32], direct[1][:32], *direct[2:]], 1e-5)
    torch.set_num_threads(before)


def test_native_columns_outside_of_the_input_count_as_zeros():
    """On an input of ones, a kernel whose four corners are ones counts its corners that lie inside."""
    geometry = Geometry((1, 1, 3, 3), padding=(1, 1))
    y = ops.sparse_conv2d(torch.ones(32, 1, 5, 6), torch.ones(4), torch.tensor([0, 2, 6, 8]), None, geometry)
    corners = torch.tensor([1.0, 2, 2, 2, 2, 1])
    for sample in y[:, 0]:
        torch.testing.assert_close(sample, torch.stack([corners, 2 * corners, 2 * corners, 2 * corners, corners]))
