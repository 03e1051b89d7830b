"""A packed model on one sample: one native call instead of one for each layer, and the same result."""

import copy
import io
import math
import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rewire
from rewire import packed_graph
from rewire.kernels import library
from rewire.lab import models
from rewire.stores.modules import Packed

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")


def scattered(model, density=0.2, seed=0):
    """With most weights zero."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.weight.data.mul_(torch.rand(module.weight.shape, generator=generator) < density)
        elif isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2.0, generator=generator)
    return model.eval()


def program(model, x):
    """The program that a model uses for a sample, if it uses any."""
    _code, kept = packed_graph._PROGRAMS.get(model, ("", {}))
    return kept.get(x.shape)


def small():
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 8, 3, padding=1)
    return scattered(nn.Sequential(convolution, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5)))


def sample(*shape, seed=0):
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed))


def agrees(fast, model, x):
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("density", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("name", models.MODELS)
def test_the_papers_networks_run_in_one_call(name, density):
    model = scattered(models.build(name, classes=10, image=(3, 32, 32), width=0.25, seed=0), density)
    fast, x = rewire.pack(model), sample(3, 32, 32)
    for seed in range(3):
        agrees(fast, model, sample(3, 32, 32, seed=seed))
    assert program(fast, x) is not None
    agrees(fast, model, torch.randn(2, 3, 32, 32))


def test_by_hand():
    """A 2x2 map, a kernel with two weights, ReLU, the largest, and a sum of that with a bias."""
    convolution, linear = nn.Conv2d(1, 1, 2, bias=False), nn.Linear(1, 2)
    convolution.weight.data = torch.tensor([[[[1.0, 0.0], [0.0, -2.0]]]])
    linear.weight.data, linear.bias.data = torch.tensor([[0.0], [4.0]]), torch.tensor([1.0, 2.0])
    fast = rewire.pack(nn.Sequential(convolution, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), linear), densest=0.5)
    x = torch.tensor([[[[5.0, 0, 0], [0, 1, 0], [0, 0, 7]]]])
    assert fast(x).tolist() == [[1.0, 2.0 + 4 * 3]]  # 5 - 2 * 1, against 0 - 0, 0 - 0 and 1 - 14
    assert [step.kind.name for step in program(fast, x).program.steps] == [
        *("COPY", "PHASES", "SPARSE", "MAX_POOL", "SPARSE_DOT", "COPY")
    ]


LAYERS = st.tuples(
    st.sampled_from([1, 2, 3, 5]), st.sampled_from([1, 1, 2, 3]), st.integers(0, 2), st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 4]), st.sampled_from([0.1, 0.6]), st.sampled_from(["", "relu", "relu6", "max", "average"]),
)  # fmt: skip


@given(
    layers=st.lists(LAYERS, min_size=1, max_size=4), size=st.tuples(*[st.integers(12, 33)] * 2), seed=st.integers(0, 9)
)
@settings(max_examples=60, deadline=None)
def test_any_chain_of_layers(layers, size, seed):
    torch.manual_seed(seed)
    modules, shape = [], (4, *size)
    for kernel, stride, pad, dilation, groups, density, then in layers:
        if min(shape[1:]) + 2 * pad <= dilation * (kernel - 1):
            continue
        modules.append(scattered(nn.Conv2d(4, 4, kernel, stride, pad, dilation, groups), density, seed))
        pools = {"max": nn.MaxPool2d(3, 2, 1), "average": nn.AvgPool2d(2, 1)}
        after = {"relu": nn.ReLU(), "relu6": nn.ReLU6(), **pools}.get(then)
        shape = modules[-1](torch.zeros(1, *shape)).shape[1:]
        if after is not None and (then not in pools or min(shape[1:]) > 1):
            modules.append(after)
            shape = after(torch.zeros(1, *shape)).shape[1:]
    if not modules:
        return
    model = nn.Sequential(*modules, nn.Flatten(), scattered(nn.Linear(math.prod(shape), 3), 0.3)).eval()
    fast, x = rewire.pack(model), sample(4, *size, seed=seed)
    agrees(fast, model, x)
    assert program(fast, x) is not None
    agrees(fast, model, sample(4, *size, seed=seed + 1))


class Net(nn.Module):
    """Whatever can be written down with two convolutions."""

    def __init__(self, forward):
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.linear, self.relu, self.drop = nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Dropout(0.5)
        self.how = forward

    def forward(self, x):
        return self.how(self, x)


RUN_AT_ONCE = {
    "both sides of a sum": lambda net, x: net.one(x) + net.two(x),
    "twice the same": lambda net, x: net.two((y := net.one(x)) + y),
    "a sum of sums": lambda net, x: (net.one(x) + x).relu() + (net.two(x) + x),
    "a layer used twice": lambda net, x: net.one(F.relu(net.one(x))),
    "functions": lambda net, x: net.linear(F.avg_pool2d(F.max_pool2d(net.one(x), 2), 4).view(x.size(0), -1)),
    "dropout": lambda net, x: net.drop(net.one(x)),
    "in place, with no other reader": lambda net, x: net.relu(net.one(x)),
    "a map is the result": lambda net, x: F.relu(net.two(net.one(x))),
    "the mean": lambda net, x: net.linear(torch.flatten(F.adaptive_avg_pool2d(net.one(x), 1), 1)),
    "a mean": lambda net, x: net.linear(net.one(x).mean((2, 3))),
    "a relu of the input": lambda net, x: net.one(F.relu(x)) + x,
}
LAYER_BY_LAYER = {
    "in place, with another reader": lambda net, x: net.relu(y := net.one(x)) + net.two(y),
    "in place, as a function": lambda net, x: F.relu(y := net.one(x), inplace=True) + net.two(y),
    "an operation that has no step": lambda net, x: net.one(x) * 2,
    "an argument by its name": lambda net, x: net.one(input=x),
    "several results": lambda net, x: (net.one(x), net.two(x)),
    "a number is added": lambda net, x: net.one(x) + 1,
    "another shape": lambda net, x: net.one(x).flatten(2),
    "a linear layer on rows": lambda net, x: nn.functional.pad(net.one(x), (0, -4)),
}


@pytest.mark.parametrize("how", RUN_AT_ONCE)
def test_graphs_that_run_in_one_call(how):
    model = scattered(Net(RUN_AT_ONCE[how]))
    fast, x = rewire.pack(model), sample(4, 8, 8)
    agrees(fast, model, x.clone())
    agrees(fast, model, x.clone())
    assert program(fast, x) is not None


@pytest.mark.parametrize("how", LAYER_BY_LAYER)
def test_graphs_that_run_layer_by_layer(how):
    model = scattered(Net(LAYER_BY_LAYER[how]))
    fast, x = rewire.pack(model), sample(4, 8, 8)
    torch.testing.assert_close(fast(x.clone()), model(x.clone()), rtol=1e-4, atol=1e-5)
    assert program(fast, x) is None


def test_a_residual_sum_is_part_of_its_layer():
    model = scattered(Net(lambda net, x: F.relu(net.two(F.relu(net.one(x))) + x)))
    fast, x = rewire.pack(model), sample(4, 8, 8)
    agrees(fast, model, x)
    kinds = [step.kind.name for step in program(fast, x).program.steps]
    assert kinds == ["COPY", "SPARSE", "SPARSE", "COPY"]


def test_a_parametrized_layer_is_left_to_torch():
    model = scattered(nn.Sequential(nn.Linear(8, 8), nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))))
    fast, x = rewire.pack(model), sample(8)
    agrees(fast, model, x)
    assert program(fast, x) is None


def test_every_size_has_its_own_program():
    model = scattered(nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)))
    fast = rewire.pack(model)
    for size in (9, 16, 9, 31):
        agrees(fast, model, sample(3, size, size))
    assert program(fast, sample(3, 9, 9)) is not program(fast, sample(3, 16, 16))
    for size in range(20, 40):
        fast(sample(3, size, size))
    assert len(packed_graph._PROGRAMS[fast][1]) == packed_graph.SHAPES


def watched(monkeypatch):
    """Counts the runs of programs."""
    runs = []
    run = packed_graph.OneSample.run
    monkeypatch.setattr(packed_graph.OneSample, "run", lambda self, x: runs.append(1) or run(self, x))
    return runs


def test_hooks_see_what_they_always_see(monkeypatch):
    model, x, seen = small(), sample(3, 8, 8), []
    fast, runs = rewire.pack(model), watched(monkeypatch)
    fast(x)
    assert len(runs) == 1
    for hooked in (fast.get_submodule("2"), fast):
        handle = hooked.register_forward_hook(lambda *given: seen.append(given))
        agrees(fast, model, x)
        handle.remove()
    assert len(seen) == 2
    assert len(runs) == 1
    fast(x)
    assert len(runs) == 2


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
    fast(x)
    other = scattered(small(), 0.1, seed=5)
    fast.load_state_dict(rewire.pack(other).state_dict())
    agrees(fast, other, x)
    fast.get_submodule("4").bias.data.add_(1)
    torch.testing.assert_close(fast(x), other(x) + 1, rtol=1e-4, atol=1e-5)
    fast.get_submodule("4").weight.data = torch.zeros_like(fast.get_submodule("4").weight)
    assert torch.equal(fast(x)[0], fast.get_submodule("4").bias)
    setattr(fast, "4", nn.Linear(128, 7))
    assert fast(x).shape == (1, 7)
    fast.graph.output_node().replace_input_with(fast.graph.output_node().args[0], next(iter(fast.graph.nodes)))
    fast.recompile()
    assert torch.equal(fast(x), x)


def test_positions_in_any_order():
    model, x = small(), sample(3, 8, 8)
    fast = rewire.pack(model)
    for layer in (module for module in fast.modules() if isinstance(module, Packed)):
        order = torch.randperm(len(layer.weight))
        layer.weight.data, layer.weight_positions = layer.weight.data[order], layer.weight_positions[order]
    agrees(fast, model, x)
    assert program(fast, x) is not None


def test_copies_and_files_keep_it():
    model, x, file = small(), sample(3, 8, 8), io.BytesIO()
    fast = rewire.pack(model)
    fast(x)
    torch.save(fast, file)
    file.seek(0)
    for twin in (copy.deepcopy(fast), torch.load(file, weights_only=False)):
        agrees(twin, model, x)
        assert program(twin, x) is not None
        assert program(twin, x) is not program(fast, x)


def test_threads_do_not_share_its_memory():
    model, wrong = small(), []
    fast = rewire.pack(model)

    def work(seed):
        for index in range(50):
            x = sample(3, 8, 8, seed=100 * seed + index)
            with torch.no_grad():
                wrong.append(not torch.allclose(fast(x), model(x), rtol=1e-4, atol=1e-5))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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
