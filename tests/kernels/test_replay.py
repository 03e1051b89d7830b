"""The portable library computes the same on AArch64: calls recorded here are replayed there, under an emulator."""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.kernels.cases import compare, draw, through_torch
from tests.kernels.recording import Recorder, differences
from tests.nn.test_blocks import Basic
from torch import nn

import rewire
from rewire.kernels import build, library
from rewire.kernels.batch import norm, pooling, relu
from rewire.kernels.batch.winograd import WinogradGradient
from rewire.kernels.geometry import Geometry
from rewire.kernels.sample.activation import INPUT, OUTPUT, Activation, Kind, Step
from rewire.kernels.sample.layer_steps import Weights, layer_steps
from rewire.kernels.sample.program import Program

REPLAY = Path(__file__).with_name("replay.cpp")
GEOMETRIES = [  # shape, stride, padding, dilation, groups; input size; batch; density
    (Geometry((20, 33, 1, 1)), (1, 1), 37, 0.2),
    (Geometry((8, 4, 3, 3), padding=(1, 1)), (6, 5), 19, 0.3),
    (Geometry((8, 4, 3, 3), (2, 2), (1, 1), (2, 2), 2), (9, 8), 7, 0.3),
    (Geometry((8, 4, 3, 3), padding=(1, 1)), (6, 5), 12, 0.95),  # computed dense
]
pytestmark = [
    pytest.mark.skipif(not library.available(), reason="the native kernels are not built"),
    pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler"),
]


def one_sample(native, geometry, size):
    """A layer for one input, as ``rewire.pack`` runs it."""
    x, values, positions, bias = (tensor.detach() for tensor in draw(geometry, size, 1))
    source = Step(Kind.COPY, Activation(*x.shape[1:], offset=INPUT), Activation(*x.shape[1:], 1))
    steps = [source, *layer_steps(native, Weights(geometry, values, bias, positions.sort()[0], 6.0), source.target, 1)]
    last = steps[-1].target
    target = Activation(last.channels, last.height, last.width, offset=OUTPUT)
    program = Program([*steps, Step(Kind.COPY, last, target)])
    y = torch.empty(1, last.channels, last.height, last.width)
    program.run(native, x, y, torch.zeros(program.size))
    expected = through_torch(x, values, positions.sort()[0], bias, geometry).clamp(0, 6)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)


def dense_gradient(geometry):
    """The gradient of all weights of a 3x3 convolution, by Winograd's method, as rewirings rank it."""
    x, grad = torch.randn(5, geometry.inputs, 9, 8), torch.randn(5, geometry.shape[0], 9, 8)
    found = WinogradGradient(x, grad, geometry).rows(slice(0, geometry.shape[0]))
    expected = torch.nn.grad.conv2d_weight(x, geometry.shape, grad, padding=geometry.padding).flatten()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def packed_modules():
    """Kernels that modules call: a residual block as one node, a linear layer on sequences."""
    model = nn.Sequential(Basic(), nn.Flatten(), nn.Unflatten(1, (5, 36)), nn.Linear(36, 8), nn.GELU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewire.sparsify(model, optimizer, rewire.static(density=0.5), store="packed")
    model(torch.randn(4, 6, 6, 5)).sum().backward()


@pytest.fixture(scope="module")
def calls():
    """Calls of every entry point that computes, by the portable library of this machine; each is right here."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        recorder = Recorder(library.load("baseline"), monkeypatch)
        torch.manual_seed(0)
        with library.use(recorder):
            for geometry, size, batch, density in GEOMETRIES:
                compare(geometry, size, batch, density, limit=6.0)
            x = torch.randn(7, 6, 5, 19).permute(3, 2, 0, 1).requires_grad_()
            weight, bias = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
            for y in (
                norm.batch_norm(x, weight, bias, 1e-5)[0],
                pooling.max_pool2d(x, [2, 2, 2, 2, 0, 0]),
                pooling.avg_pool2d(x, [3, 2, 2, 1, 1, 1], False),
                relu.relu(x, 1.0),
            ):
                y.backward(torch.randn_like(y))
            one_sample(recorder, GEOMETRIES[1][0], (6, 5))
            dense_gradient(GEOMETRIES[1][0])
            packed_modules()
    return recorder.calls


def replayed(folder, calls, command, shared, emulator=()):
    """The memory after each call, computed by another library, and what that library says of its interface."""
    program = folder / "replay"
    openmp = ("-fopenmp", "-Wl,--no-as-needed", "-lgomp")
    subprocess.run([command, "-std=gnu++17", str(REPLAY), *openmp, "-ldl", "-rdynamic", "-o", str(program)], check=True)
    (folder / "calls").write_bytes(struct.pack("q", len(calls)) + b"".join(call.encode() for call in calls))
    words = [*emulator, str(program), str(shared), str(folder / "calls"), str(folder / "results")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return (folder / "results").read_bytes(), set(done.stdout.splitlines())


def test_the_recording_uses_almost_every_entry_point(calls):
    called = {call.name for call in calls}
    pooled_norm = {"rewire_batch_norm_pool", "rewire_batch_norm_pool_grad_sums", "rewire_batch_norm_pool_grad_input"}
    questions = {"rewire_cpu_supports", "rewire_source_hash", "rewire_interface"}
    assert set(library.ENTRY_POINTS) - called <= pooled_norm | questions


def test_calls_replayed_on_this_machine_give_the_same_bits(tmp_path, calls):
    results, interface = replayed(tmp_path, calls, build.compiler(), build.library_path("baseline").absolute())
    assert interface == library.interface()
    assert not differences(calls, results, 0.0)


def test_a_wrong_result_is_noticed(tmp_path, calls):
    results = bytearray(replayed(tmp_path, calls, build.compiler(), build.library_path("baseline").absolute())[0])
    results[-4:] = struct.pack("f", 1e9)
    assert differences(calls, bytes(results), 1e-4)


CROSS, EMULATOR, SYSROOT = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"
WITHOUT = f"needs {CROSS} and {EMULATOR} (`make aarch64` installs both on Debian and Ubuntu)"


@pytest.mark.skipif(not (shutil.which(CROSS) and shutil.which(EMULATOR)), reason=WITHOUT)
def test_aarch64_computes_the_same(tmp_path, calls):
    """NEON has registers of four floats, as the portable library on x86-64; it may fuse multiply and add."""
    command = [sys.executable, "-m", "rewire.kernels.build", str(tmp_path / "libraries")]
    built = subprocess.run(command, env=os.environ | {"CXX": CROSS}, check=True, capture_output=True, text=True).stdout
    assert [Path(line).name for line in built.splitlines()] == ["librewire_baseline.so"]
    emulator = (EMULATOR, "-L", SYSROOT)
    results, interface = replayed(tmp_path, calls, CROSS, tmp_path / "libraries" / "librewire_baseline.so", emulator)
    assert interface == library.interface()
    assert not differences(calls, results, 1e-4)
