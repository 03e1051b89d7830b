"""A packed model on one sample: one native call instead of one for each layer, and the same result."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graphs import Net, agrees, program, sample, scattered
from torch import nn

import rewire
from rewire.inference import graph as packed_graph
from rewire.kernels import library
from rewire.lab import models

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")


@pytest.mark.parametrize("density", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("name", ["mlp", "mobilenet-v2", "resnet-18", "vgg-small", "vgg16"])
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
        *("COPY", "SPACE_TO_DEPTH", "SPARSE_CONV", "MAX_POOL", "SPARSE_DOT", "COPY")
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


RUN_AT_ONCE = {
    "both sides of a sum": lambda net, x: net.one(x) + net.two(x),
    "twice the same": lambda net, x: net.two((y := net.one(x)) + y),
    "a sum of sums": lambda net, x: (net.one(x) + x).relu() + (net.two(x) + x),
    "a layer used twice": lambda net, x: net.one(F.relu(net.one(x))),
    "the size of a map": lambda net, x: net.linear(F.max_pool2d(net.one(x), x.size()[2:]).reshape(1, -1)),
    "relu6 and dropout": lambda net, x: F.dropout(F.relu6(net.one(x)), 0.5, False) + F.dropout(x, training=False),
    "functions": lambda net, x: net.linear(F.avg_pool2d(F.max_pool2d(net.one(x), 2), 4).view(x.size(0), -1)),
    "dropout": lambda net, x: net.drop(net.one(x)),
    "in place, with no other reader": lambda net, x: net.relu(net.one(x)),
    "a map is the result": lambda net, x: F.relu(net.two(net.one(x))),
    "the mean": lambda net, x: net.linear(torch.flatten(F.adaptive_avg_pool2d(net.one(x), 1), 1)),
    "a mean": lambda net, x: net.linear(net.one(x).mean((2, 3))),
    "a mean of named axes": lambda net, x: net.linear(torch.mean(net.one(x), dim=[-1, -2])),
    "in place, through another name": lambda net, x: net.relu(net.drop(net.one(x))),
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
    "a linear layer on rows": lambda net, x: net.linear(F.max_pool2d(net.one(x), 2)),
    "a sum that is larger than its parts": lambda net, x: (y := net.one(x).mean((2, 3), keepdim=True)) + y.flatten(1),
    "a mean of all": lambda net, x: net.linear(net.one(x).mean((2, 3))).mean((-2, -1)),
    "in place on the input": lambda net, x: net.one(x.mul_(2)),
    "in place on the input, by a module": lambda net, x: net.relu(net.drop(x)) + x,
    "in place, through another name": lambda net, x: net.relu((y := net.one(x)).flatten(1)) + net.two(y).flatten(1),
    "a dropout that goes on": lambda net, x: F.dropout(net.one(x), 0.0),
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
    assert kinds == ["COPY", "SPARSE_CONV", "SPARSE_CONV", "COPY"]


def test_a_parametrized_layer_is_left_to_torch():
    model = scattered(nn.Sequential(nn.Linear(8, 8), nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))))
    fast, x = rewire.pack(model), sample(8)
    agrees(fast, model, x)
    assert program(fast, x) is None


def test_a_parametrized_convolution_is_left_to_torch():
    convolution = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 8, 3))
    model = scattered(nn.Sequential(convolution, nn.Flatten(), nn.Linear(8 * 36, 3)))
    agrees(rewire.pack(model), model, sample(3, 8, 8))


def test_every_size_has_its_own_program():
    model = scattered(nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)))
    fast = rewire.pack(model)
    for size in (9, 16, 9, 31):
        agrees(fast, model, sample(3, size, size))
    assert program(fast, sample(3, 9, 9)) is not program(fast, sample(3, 16, 16))
    for size in range(20, 40):
        fast(sample(3, size, size))
    assert len(fast.programs.by_shape) == packed_graph.MAX_PROGRAMS


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("pad", [(1, 0), (0, 1), (1, 1)])
def test_a_pooling_window_that_is_not_square(include, pad):
    pool = nn.AvgPool2d((3, 2), padding=pad, count_include_pad=include)
    model = nn.Sequential(scattered(nn.Conv2d(3, 4, 3), 0.3), pool, nn.Flatten()).eval()
    fast, x = rewire.pack(model), sample(3, 11, 10)
    agrees(fast, model, x)
    assert program(fast, x) is not None
