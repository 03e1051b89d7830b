"""Steps of one-sample programs against torch: sparse and dense layers in every geometry, sums, pooling, copies."""

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
from rewire.kernels.sample.activation import INPUT, OUTPUT, Activation, Kind, Step, Window
from rewire.kernels.sample.layer_steps import (
    LargeActivationError,
    Weights,
    copy_margin,
    layer_steps,
    margin_for,
)
from rewire.kernels.sample.program import Program

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")
CASES = list(geometries())


@pytest.fixture(scope="module", params=library.available())
def isa(request):  # per module, as Hypothesis needs it
    return library.load(request.param)


def copied_in(x, margin):
    """The step that copies the input of a program into an activation with a margin."""
    sizes = x.shape[1:]
    return Step(Kind.COPY, Activation(*sizes, offset=INPUT), Activation(*sizes, margin))


def result(library, x, steps, runs=1):
    """The output of a program; a second run must find its memory in order."""
    last = steps[-1].target
    program = Program(
        [*steps, Step(Kind.COPY, last, Activation(last.channels, last.height, last.width, offset=OUTPUT))]
    )
    y, memory = torch.empty(1, last.channels, last.height, last.width), torch.zeros(program.size)
    for _ in range(runs):
        y.fill_(math.nan)
        program.run(library, x, y, memory)
    return y


def layer(library, geometry, x, values, positions, bias, margin, limit=-1.0, residual=False):
    """The steps of a layer, the input's own included; ``residual``: the input is added to the output."""
    into = copied_in(x, margin)
    weights = Weights(geometry, values, bias, positions, limit)
    return [into, *layer_steps(library, weights, into.target, margin, into.target if residual else None)]


@pytest.mark.parametrize("threads", [1, 3])
def test_native_sparse_layers_between_activations_with_margins(isa, threads):
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


def test_native_dense_layers_between_activations_with_margins(isa):
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
def test_fuzzed_planes_of_every_size(isa, width, height, outputs, threads, density, is_dense, seed):
    """Tiles of every number of vectors, and a residual sum."""
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
            into = copied_in(x, index % 2)
            for kind, counts, y in (
                (Kind.MAX_POOL, False, F.max_pool2d(x, kernel, stride, pad)),
                (Kind.AVG_POOL, False, F.avg_pool2d(x, kernel, stride, pad, count_include_pad=False)),
                (Kind.AVG_POOL, True, F.avg_pool2d(x, kernel, stride, pad)),
            ):
                window = Window((kernel, kernel), (stride, stride), (pad, pad), counts)
                step = Step(kind, into.target, Activation(*y.shape[1:], index % 2), window=window)
                torch.testing.assert_close(result(isa, x, [into, step], runs=2), y, equal_nan=True)


def test_native_sums_and_flat_copies(isa):
    x = torch.randn(1, 3, 4, 5)
    into = copied_in(x, 2)
    twice = Step(Kind.ADD, into.target, Activation(3, 4, 5, 2), into.target, 1.5)
    assert torch.equal(result(isa, x, [into, twice], runs=2), (2 * x).clamp(0, 1.5))
    flat = Step(Kind.COPY, twice.target, Activation(60, 1, 1))
    assert torch.equal(result(isa, x, [into, twice, flat]).flatten(), (2 * x).clamp(0, 1.5).flatten())


def test_activations_of_one_layout_share_memory():
    into = Step(Kind.COPY, Activation(3, 4, 5, offset=INPUT), Activation(3, 4, 5, 1))
    steps = [into]
    for _ in range(6):
        steps.append(Step(Kind.ADD, steps[-1].target, Activation(3, 4, 5, 1)))
    program = Program(steps)
    assert program.size == 2 * into.target.size
    for before, after in itertools.pairwise(steps):
        assert before.target.offset != after.target.offset


def test_an_activation_that_is_read_later_keeps_its_memory():
    into = Step(Kind.COPY, Activation(3, 4, 5, offset=INPUT), Activation(3, 4, 5, 1))
    first, second = (Step(Kind.ADD, into.target, Activation(3, 4, 5, 1)) for _ in range(2))
    last = Step(Kind.ADD, second.target, Activation(3, 4, 5, 1), into.target)
    Program([into, first, second, last])
    assert len({step.target.offset for step in (into, second, last)}) == 3


def test_the_layout_of_an_activation_by_hand():
    """Two by three pixels with a margin: rows four apart, the first pixel behind a row and a column of zeros."""
    planes = Activation(2, 2, 3, margin=1)
    assert (planes.row_stride, planes.origin) == (4, 5)
    assert planes.channel_stride == 5 + 16  # whole vectors from the first pixel on
    assert Activation(7, 1, 1, margin=3).channel_stride == 1
    assert Activation(2, 2, 3, offset=INPUT).channel_stride == 6


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


def test_an_activation_too_large_for_32_bits_is_refused(isa):
    geometry = Geometry((1, 40000, 1, 1))
    weights = Weights(geometry, torch.ones(1), None, torch.zeros(1, dtype=torch.int32))
    with pytest.raises(LargeActivationError, match="an activation of 40000 x 256 x 256 is too large"):
        layer_steps(isa, weights, Activation(40000, 256, 256), 0)
