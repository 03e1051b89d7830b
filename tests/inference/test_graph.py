"""Nobody can tell that a packed model runs a sample at once: hooks, training, other weights, copies, threads."""

import copy
import io

import pytest
import torch
from tests.graphs import Net, agrees, in_threads, program, sample, scattered, small
from torch import nn

import rewire
from rewire.inference import graph as packed_graph
from rewire.kernels import library
from rewire.nn.packed import Packed

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")


def watched(monkeypatch):
    """Counts the runs of programs."""
    runs = []
    run = packed_graph._PreparedProgram.run
    monkeypatch.setattr(packed_graph._PreparedProgram, "run", lambda self, *given: runs.append(1) or run(self, *given))
    return runs


def test_hooks_see_what_they_always_see(monkeypatch):
    model, x, seen = small(), sample(3, 8, 8), []
    fast, runs = rewire.pack(model), watched(monkeypatch)
    for hooked in (fast.get_submodule("2"), fast):
        handle = hooked.register_forward_hook(lambda *given: seen.append(given))
        agrees(fast, model, x)
        handle.remove()
    assert len(seen) == 2
    assert not runs
    fast(x)
    assert len(runs) == 1
    fast.get_submodule("4").forward = lambda given: given[:, :2]
    assert fast(x).shape == (1, 2)


def test_nothing_happens_twice():
    model = scattered(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.BatchNorm2d(8)))
    fast = rewire.pack(model).train()
    fast(sample(3, 8, 8))
    assert fast.get_submodule("2").num_batches_tracked == 1


def test_what_needs_torch_goes_to_torch(monkeypatch):
    model, x = small(), sample(3, 8, 8)
    fast, runs = rewire.pack(model), watched(monkeypatch)
    fast(x.clone().requires_grad_()).sum().backward()
    with torch.autocast("cpu"):
        fast(x)
    fast.train()
    fast(x)
    fast.eval().requires_grad_(True)
    assert fast(x).requires_grad
    assert not runs
    with torch.inference_mode():
        agrees(fast, model, x)
    assert len(runs) == 1
    fast.double()
    assert fast(x.double()).dtype == torch.float64
    assert len(runs) == 1


def test_other_weights_are_noticed():
    model, x = small(), sample(3, 8, 8)
    fast = rewire.pack(model)
    last = fast.get_submodule("4")
    fast(x)
    other = scattered(small(), 0.1, seed=5)
    fast.load_state_dict(rewire.pack(other).state_dict())
    agrees(fast, other, x)
    last.bias.data.add_(1)
    torch.testing.assert_close(fast(x), other(x) + 1, rtol=1e-4, atol=1e-5)
    last.weight_values.data = torch.zeros_like(last.weight_values)
    assert torch.equal(fast(x)[0], last.bias)
    last.bias = None
    assert torch.equal(fast(x), torch.zeros(1, 5))
    last.bias = nn.Parameter(torch.arange(5.0), requires_grad=False)
    assert torch.equal(fast(x)[0], last.bias)


def test_other_modules_are_noticed():
    model, x = small(), sample(3, 8, 8)
    fast = rewire.pack(model)
    fast(x)
    setattr(fast, "4", nn.Linear(128, 7))
    assert fast(x).shape == (1, 7)
    fast.graph.output_node().replace_input_with(fast.graph.output_node().args[0], next(iter(fast.graph.nodes)))
    fast.recompile()
    assert torch.equal(fast(x), x)


def test_another_container_is_noticed():
    class Outer(nn.Module):
        def __init__(self, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

        def forward(self, x):
            return self.inner(x)

    one, two, x = scattered(Outer(0)), scattered(Outer(1)), sample(8)
    fast = rewire.pack(one)
    agrees(fast, one, x)
    fast.inner = rewire.pack(two).inner
    agrees(fast, two, x)


def test_a_head_that_was_cut_is_noticed():
    model, x = small(), sample(3, 8, 8)
    fast = rewire.pack(model, densest=0.0)
    expected, last = fast(x), fast.get_submodule("4")
    last.weight.data, last.bias.data = last.weight.data[:2], last.bias.data[:2]
    torch.testing.assert_close(fast(x), expected[:, :2])


def test_weights_in_another_memory_format():
    model, x = small().to(memory_format=torch.channels_last), sample(3, 8, 8)
    fast = rewire.pack(model, densest=0.0)
    agrees(fast, model, x)
    assert program(fast, x) is not None
    fast.get_submodule("0").weight.data.zero_()
    fast.get_submodule("0").bias.data.zero_()
    assert torch.equal(fast(x)[0], fast.get_submodule("4").bias)


def test_positions_in_any_order():
    model, x = small(), sample(3, 8, 8)
    fast = rewire.pack(model)
    for layer in (module for module in fast.modules() if isinstance(module, Packed)):
        order = torch.randperm(len(layer.weight_values))
        layer.weight_values.data, layer.weight_positions = (
            layer.weight_values.data[order],
            layer.weight_positions[order],
        )
    agrees(fast, model, x)
    fast.get_submodule("0").weight_positions[0] = 10**6
    with pytest.raises(ValueError, match="positions must lie in"):
        fast(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_type_is_another(dtype):
    model, x = small(), sample(3, 8, 8)
    fast, many = rewire.pack(model), torch.randn(3, 3, 8, 8)
    torch.set_default_dtype(dtype)
    try:
        agrees(fast, model, x)
        agrees(fast, model, many)
    finally:
        torch.set_default_dtype(torch.float32)
    assert program(fast, x) is not None


def test_copies_and_files_keep_it():
    model, x, file = scattered(Net(lambda net, x: (net.one(x) + x).relu() + net.two(x))), sample(4, 8, 8), io.BytesIO()
    fast = rewire.pack(model)
    fast.classes = ["a", "b"]
    fast(x)
    torch.save(fast, file)
    file.seek(0)
    for copied in (copy.deepcopy(fast), torch.load(file, weights_only=False)):
        assert copied.programs is None
        agrees(copied, model, x)
        assert program(copied, x) is not None
        copied.load_state_dict(fast.state_dict())
    assert copied.classes == ["a", "b"]


def test_threads_do_not_share_its_memory():
    model, wrong = small(), []
    fast = rewire.pack(model)

    def work(seed):
        for index in range(50):
            x = sample(3, 8, 8, seed=100 * seed + index)
            with torch.no_grad():
                wrong.append(not torch.allclose(fast(x), model(x), rtol=1e-4, atol=1e-5))

    in_threads(work)
    assert len(wrong) == 200
    assert not any(wrong)


def test_a_sample_that_does_not_fit_is_refused_as_ever():
    fast = rewire.pack(small())
    with pytest.raises(ValueError, match="reads 3 channels"):
        fast(torch.randn(1, 4, 8, 8))
    with pytest.raises(ValueError, match="has 128 inputs and was given"):
        fast(torch.randn(1, 3, 9, 12))


def test_a_model_packed_in_inference_mode():
    model, x = small(), sample(3, 8, 8)
    with torch.inference_mode():
        fast = rewire.pack(model)
        agrees(fast, model, x)
    agrees(fast, model, x)
    agrees(fast, model, torch.randn(3, 3, 8, 8))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.filterwarnings("ignore")  # torch says that tracing is old, and where it takes sizes for constants
def test_tracing_records_the_kernels(size):
    model = small()
    fast = rewire.pack(model)
    traced = torch.jit.trace(fast, torch.randn(size, 3, 8, 8))
    agrees(traced, model, torch.randn(size, 3, 8, 8))
