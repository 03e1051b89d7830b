"""Steps on one sample, each against torch: layers sparse and dense in every geometry, sums, pooling, copies."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.cases import agree, draw, geometries, through_torch

from rewire.kernels import library
from rewire.kernels.geometry import Geometry
from rewire.kernels.sample.activation import INPUT, OUTPUT, Kind, Planes, Step
from rewire.kernels.sample.program import LargeMapError, Program, Weights, copy_margin, layer_steps, margin_for

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")
CASES = list(geometries())


@pytest.fixture(scope="module", params=library.available())
def isa(request):
    return library.load(request.param)


def entered(x, margin):
    """The step that takes a sample in."""
    sizes = x.shape[1:]
    return Step(Kind.COPY, Planes(*sizes, at=INPUT), Planes(*sizes, margin))


def result(library, x, steps, runs=1):
    """What a program writes; run again, it finds its memory as it was."""
    last = steps[-1].target
    program = Program([*steps, Step(Kind.COPY, last, Planes(last.channels, last.height, last.width, at=OUTPUT))])
    y, own = torch.empty(1, last.channels, last.height, last.width), torch.zeros(program.size)
    for _ in range(runs):
        y.fill_(math.nan)
        program.run(library, x, y, own)
    return y


def layer(library, geometry, x, values, positions, bias, margin, limit=-1.0, residual=False):
    """A sample taken in, and a layer behind it, whose output ``x`` is added to where that is asked for."""
    into = entered(x, margin)
    weights = Weights(geometry, values, bias, positions, limit)
    return [into, *layer_steps(library, weights, into.target, margin, into.target if residual else None)]


@pytest.mark.parametrize("threads", [1, 3])
def test_native_sparse_layers_between_maps_with_borders(isa, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    for index, (geometry, size) in enumerate(CASES):
        x, values, positions, bias = (t.detach() for t in draw(geometry, size, 1, seed=index))
        positions, order = positions.sort()
        values = values[order]
        margin = max(margin_for(geometry), index % 3)
        steps = layer(isa, geometry, x, values, positions, bias if index % 2 else None, margin, 4.0)
        expected = through_torch(x, values, positions, bias if index % 2 else None, geometry).clamp(0, 4)
        agree([result(isa, x, steps, runs=2)], [expected], 1e-4)
    torch.set_num_threads(before)


def test_native_dense_layers_between_maps_with_borders(isa):
    for index, (geometry, size) in enumerate(CASES):
        x, values, positions, bias = (t.detach() for t in draw(geometry, size, 1, density=1.0, seed=index))
        values = torch.empty_like(values).index_copy_(0, positions, values)
        steps = layer(isa, geometry, x, values, None, bias, max(margin_for(geometry), index % 3))
        agree([result(isa, x, steps)], [through_torch(x, values, torch.arange(len(values)), bias, geometry)], 1e-4)


@given(
    width=st.integers(1, 70), height=st.integers(1, 9), outputs=st.integers(1, 11), threads=st.integers(1, 4),
    density=st.sampled_from([0.0, 0.1, 0.5, 1.0]), is_dense=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_fuzzed_runs_of_every_length(isa, width, height, outputs, threads, density, is_dense, seed):
    """Tiles of every number of vectors, and a residual sum on the way."""
    geometry = Geometry((outputs, 3, 3, 3), padding=(1, 1))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 3, height, width, generator=generator)
    weight = torch.randn(geometry.shape, generator=generator) * (
        torch.rand(geometry.shape, generator=generator) < density
    )
    positions = None if is_dense else weight.flatten().nonzero().flatten().int()
    values = weight.flatten() if is_dense else weight.flatten()[positions.long()]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    steps = layer(isa, geometry, x, values, positions, None, 1, math.inf, residual=outputs == 3)
    y = result(isa, x, steps, runs=2)
    torch.set_num_threads(before)
    agree([y], [(F.conv2d(x, weight, padding=1) + (x if outputs == 3 else 0)).relu()], 1e-4)


def test_native_pooling(isa):
    for index, (kernel, stride, pad) in enumerate([(2, 2, 0), (3, 2, 1), (3, 1, 1), (4, 3, 2), (5, 5, 0), (2, 1, 0)]):
        for size in ((5, 5), (8, 21), (9, 34), (16, 33), (1, 1)):
            if min(size) + 2 * pad < kernel:
                continue
            x = torch.randn(1, 5, *size, generator=torch.Generator().manual_seed(index))
            x[0, 0, 0, 0] = math.nan
            into = entered(x, index % 2)
            window = (kernel, kernel, stride, stride, pad, pad)
            for kind, counts, y in (
                (Kind.MAX_POOL, 0, F.max_pool2d(x, kernel, stride, pad)),
                (Kind.AVERAGE_POOL, 0, F.avg_pool2d(x, kernel, stride, pad, count_include_pad=False)),
                (Kind.AVERAGE_POOL, 1, F.avg_pool2d(x, kernel, stride, pad)),
            ):
                step = Step(kind, into.target, Planes(*y.shape[1:], index % 2), window=(*window, counts, 0))
                torch.testing.assert_close(result(isa, x, [into, step], runs=2), y, equal_nan=True)


def test_native_sums_and_flat_copies(isa):
    x = torch.randn(1, 3, 4, 5)
    into = entered(x, 2)
    twice = Step(Kind.ADD, into.target, Planes(3, 4, 5, 2), into.target, 1.5)
    assert torch.equal(result(isa, x, [into, twice], runs=2), (2 * x).clamp(0, 1.5))
    flat = Step(Kind.COPY, twice.target, Planes(60, 1, 1))
    assert torch.equal(result(isa, x, [into, twice, flat]).flatten(), (2 * x).clamp(0, 1.5).flatten())


def test_maps_of_one_form_take_turns():
    into = Step(Kind.COPY, Planes(3, 4, 5, at=INPUT), Planes(3, 4, 5, 1))
    steps = [into]
    for _ in range(6):
        steps.append(Step(Kind.ADD, steps[-1].target, Planes(3, 4, 5, 1)))
    program = Program(steps)
    assert program.size == 2 * into.target.size
    for before, after in itertools.pairwise(steps):
        assert before.target.at != after.target.at


def test_a_map_that_is_read_later_keeps_its_place():
    into = Step(Kind.COPY, Planes(3, 4, 5, at=INPUT), Planes(3, 4, 5, 1))
    first, second = (Step(Kind.ADD, into.target, Planes(3, 4, 5, 1)) for _ in range(2))
    last = Step(Kind.ADD, second.target, Planes(3, 4, 5, 1), into.target)
    Program([into, first, second, last])
    assert len({step.target.at for step in (into, second, last)}) == 3


def test_planes_by_hand():
    """Two by three pixels with a border: rows four apart, the first pixel behind a row and a column of zeros."""
    planes = Planes(2, 2, 3, margin=1)
    assert (planes.pitch, planes.first) == (4, 5)
    assert planes.plane == 5 + 16  # whole vectors from the first pixel on
    assert Planes(7, 1, 1, margin=3).plane == 1
    assert Planes(2, 2, 3, at=INPUT).plane == 6


def test_the_margin_is_what_a_layer_reads_beyond_the_edge():
    same = Geometry((4, 4, 5, 3), padding=(2, 1))
    assert margin_for(same) == 2
    strided = Geometry((4, 4, 3, 3), (2, 2), (1, 1))
    assert margin_for(strided) == copy_margin(strided) == 1
    assert margin_for(Geometry((4, 4, 3, 3))) == 2  # its output is narrower than what it reads
    assert margin_for(Geometry((4, 4, 1, 1))) == 0


def test_native_kernels_with_many_taps(isa):
    for geometry in (Geometry((8, 3, 16, 16), (16, 16)), Geometry((4, 2, 1, 7), (2, 1), (0, 3))):
        x, values, positions, bias = (t.detach() for t in draw(geometry, (32, 32), 1))
        order = positions.argsort()
        steps = layer(isa, geometry, x, values[order], positions[order].int(), bias, margin_for(geometry))
        agree([result(isa, x, steps)], [through_torch(x, values, positions, bias, geometry)], 1e-4)


def test_a_map_that_no_offset_reaches_is_refused(isa):
    geometry = Geometry((1, 40000, 1, 1))
    weights = Weights(geometry, torch.ones(1), None, torch.zeros(1, dtype=torch.int32))
    with pytest.raises(LargeMapError, match="a map of 40000 x 256 x 256 is too large"):
        layer_steps(isa, weights, Planes(40000, 256, 256), 0)
