"""Sparse layers: threads and column blocks, fuzzed shapes, registered operators, choice of an instruction set."""

import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.cases import agree, draw, linear, run, through_operator, through_torch

from rewire.kernels import library, reference
from rewire.kernels.batch import ops
from rewire.kernels.batch.plan import Plan
from rewire.kernels.geometry import Geometry, is_hwcn
from rewire.kernels.plan_cache import cached_plan, plan_bytes

ISAS = library.available()
needs_native = pytest.mark.skipif(not ISAS, reason="the native kernels are not built")


@needs_native
def test_native_column_blocks_and_threads(isa):
    """Several column blocks; threads that split rows, and threads that split pixels."""
    for geometry, size in ((Geometry((64, 3000, 1, 1)), (1, 1)), (Geometry((40, 300, 3, 3), padding=(1, 1)), (9, 9))):
        batch = 32 if math.prod(size) > 1 else 20  # whole im2col tiles for the convolution
        x, values, positions, bias = draw(geometry, size, batch, density=0.2)
        grad = torch.randn(batch, geometry.shape[0], *geometry.output(*size))
        assert cached_plan(Plan, geometry, positions, *size).forward.col_blocks > 1
        exact = run(through_torch, x, values, positions, bias, geometry, grad)
        before = torch.get_num_threads()
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found = run(through_operator, x, values, positions, bias, geometry, grad)
            torch.set_num_threads(before)
            agree(found, exact, 1e-4)


@needs_native
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_fuzzed_shapes_stay_inside_their_memory(data):
    """The results are right; that nothing outside is touched is what the sanitizers watch (``make sanitize``)."""
    small = st.integers(1, 4)
    groups, kernel = data.draw(small), (data.draw(small), data.draw(small))
    geometry = Geometry(
        (groups * data.draw(small), data.draw(small), *kernel),
        (data.draw(small), data.draw(small)),
        (data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))),
        (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))),
        groups,
    )
    smallest = [d * (k - 1) + 1 - 2 * p for d, k, p in zip(geometry.dilation, kernel, geometry.padding, strict=True)]
    size = tuple(max(n, 1) + data.draw(st.integers(0, 9)) for n in smallest)
    batch, density = data.draw(st.integers(1, 40) | st.sampled_from((16, 32, 64))), data.draw(st.floats(0.0, 1.0))
    x, values, positions, bias = draw(geometry, size, batch, density=density)
    grad = torch.randn(batch, geometry.shape[0], *geometry.output(*size))
    exact = run(through_torch, x, values, positions, bias, geometry, grad)
    for isa in ISAS:
        with library.use(library.load(isa)):
            agree(run(through_operator, x, values, positions, bias, geometry, grad), exact, 1e-4)


@needs_native
def test_the_output_is_hwcn_and_relu_is_fused():
    geometry = Geometry((12, 6, 3, 3), padding=(1, 1))
    x, values, positions, bias = draw(geometry, (5, 5), 16)
    y = ops.sparse_conv2d(x, values, positions, bias, geometry)
    fused = ops.sparse_conv2d(x, values, positions, bias, geometry, math.inf)
    assert is_hwcn(y)
    assert torch.equal(fused, y.relu())
    one, other = (torch.autograd.grad(t.sum(), values)[0] for t in (fused, y.relu()))
    torch.testing.assert_close(one, other)


def test_positions_that_are_written_to_get_a_new_plan():
    x, values, positions = torch.eye(3), torch.tensor([2.0]), torch.tensor([1])
    assert linear(x, values, positions, None, 2).t().flatten().tolist() == [0, 2, 0, 0, 0, 0]
    positions.fill_(5)
    assert linear(x, values, positions, None, 2).t().flatten().tolist() == [0, 0, 0, 0, 0, 2]
    assert library.native() is None or plan_bytes(positions) > 0


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # opcheck's own
def test_registered_operators_are_sound():
    geometry = Geometry((4, 3, 3, 3), padding=(1, 1))
    x, values, positions, bias = draw(geometry, (4, 4), 2)
    torch.library.opcheck(ops.operator, (x, values, positions, bias, geometry.numbers()))


def test_compile_sees_one_operator():
    x, values, positions, _ = draw(Geometry((8, 6, 1, 1)), (1, 1), 5)
    x = x.detach().flatten(1)

    def layer(x):
        return linear(x, values, positions, None, 8).relu()

    torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), layer(x))


def test_an_input_smaller_than_the_kernel_is_refused():
    with pytest.raises(ValueError, match=r"an input of 2x2 is too small for a kernel of 3x3 with padding \(0, 0\)"):
        Geometry((1, 1, 3, 3)).output(2, 2)


def test_the_instruction_set_can_be_chosen():
    # The choice is made when the kernels are first asked for: forked processes make it after one import of torch.
    code = """if True:
        import os, sys
        from rewire.kernels import info
        for isa in sys.argv[1:]:
            if os.fork() == 0:
                os.environ["REWIRE_ISA"] = isa
                print(info()["isa"], flush=True)
                sys.exit()
            os.wait()
    """
    asked = [*ISAS, "reference", "mmx"]
    done = subprocess.run([sys.executable, "-c", code, *asked], capture_output=True, text=True)
    assert done.stdout.split() == [*ISAS, "reference"]
    assert "REWIRE_ISA='mmx' is not available here; choose from" in done.stderr


def test_without_libraries_the_reference_runs_with_one_warning(tmp_path):
    code = (
        "import warnings, torch; warnings.simplefilter('error', DeprecationWarning)\n"
        "from rewire.kernels.batch import ops; from rewire.kernels.geometry import Geometry\n"
        "layer = torch.ones(1), torch.tensor([4]), None, Geometry((2, 3, 1, 1))\n"
        "for _ in range(2): y = ops.sparse_conv2d(torch.eye(3)[:, :, None, None], *layer)\n"
        "print(y.flatten().tolist())"
    )
    environment = {k: v for k, v in os.environ.items() if k != "REWIRE_ISA"} | {"REWIRE_LIBRARIES": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.stdout.decode().strip() == "[0.0, 0.0, 0.0, 1.0, 0.0, 0.0]"
    assert done.stderr.decode().count("the native sparse kernels are not built") == 1


def test_the_reference_of_a_large_matrix_is_never_dense(monkeypatch):
    monkeypatch.setattr(reference, "_dense", None)
    geometry = Geometry((30_000, 30_000, 1, 1))
    positions = torch.randint(geometry.numel, (50,)).unique()
    x, values = torch.randn(2, 30_000, 1, 1, dtype=torch.float64), torch.randn(len(positions), dtype=torch.float64)
    y = ops.sparse_conv2d(x, values, positions, None, geometry)
    assert int((y != 0).sum()) <= 2 * len(positions)
