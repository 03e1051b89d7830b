"""Models packed for inference: the same function, faster."""

import math

import pytest
import torch
from tests.graphs import scattered
from tests.networks import OPTIMIZERS, batch, train
from tests.stores.packing import IMAGE, Residual, sparse, vgg
from torch import nn

import rewire
from rewire.lab import models
from rewire.nn.hwcn import HwcnLinear, add_relu
from rewire.nn.packed import Packed, PackedConv2d, PackedLinear


def packed_layers(model):
    return [module for module in model.modules() if isinstance(module, Packed)]


@pytest.mark.parametrize("size", [1, 5, 64])
@pytest.mark.parametrize("store", ["masked", "packed"])
@pytest.mark.parametrize("network", ["mlp", "vgg", "residual"])
def test_the_same_function_at_any_batch(network, store, size):
    method = rewire.ggr(density=0.2, every=3, until=100)
    model, optimizer, _rewirer = sparse(store, network, method, dtype=torch.float32)
    shape = (12,) if network == "mlp" else IMAGE
    train(model, optimizer, 7, shape=shape)
    fast = rewire.pack(model)
    x = batch(0, shape, size)[0]
    torch.testing.assert_close(fast(x), model.eval()(x), rtol=1e-4, atol=1e-5)
    assert packed_layers(fast)
    assert not any(parameter.requires_grad for parameter in fast.parameters())


def test_batch_norm_is_folded_and_relu_fused():
    model = scattered(vgg())
    fast = rewire.pack(model)
    called = [type(fast.get_submodule(n.target)).__name__ for n in fast.graph.nodes if n.op == "call_module"]
    assert called == [
        *("PackedConv2d", "HwcnMaxPool2d", "PackedConv2d", "HwcnAvgPool2d"),
        *("HwcnFlatten", "PackedLinear", "PackedLinear"),
    ]
    assert [layer.relu_limit for layer in packed_layers(fast)] == [math.inf, math.inf, math.inf, -1]
    assert isinstance(model[0], nn.Conv2d)
    assert model[0].bias is None  # the model itself was left alone


class Block(nn.Module):
    """Adds its input to what two layers made of it, in one way or another."""

    def __init__(self, how):
        super().__init__()
        self.how, self.relu = how, nn.ReLU()
        self.one, self.two = (nn.Conv2d(6, 6, 3, padding=1) for _ in range(2))
        for layer in (self.one, self.two):
            layer.weight.data.mul_(torch.rand_like(layer.weight) < 0.2)

    def forward(self, x):
        y = self.two(self.relu(self.one(x)))
        if self.how == "in place":
            y += x
            return self.relu(y)
        if self.how == "a statement":
            y.add_(x)
            return self.relu(y)
        if self.how == "scaled":
            return torch.relu(torch.add(y, x, alpha=2))
        return torch.relu(y + x) if self.how == "relu" else y + x


@pytest.mark.parametrize("size", [1, 5, 32])
@pytest.mark.parametrize(
    ("how", "fused"),
    [("in place", 1), ("relu", 1), ("no relu", 1), ("a statement", 0), ("scaled", 0)],
)
def test_the_end_of_a_residual_block_is_fused_where_nobody_can_tell(how, fused, size):
    model, x = Block(how).eval(), torch.randn(size, 6, 9, 9)
    fast = rewire.pack(model)
    assert sum(node.target is add_relu for node in fast.graph.nodes) == fused
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    given = x.clone().requires_grad_()
    torch.testing.assert_close(
        torch.autograd.grad(fast(given).sum(), given)[0],
        torch.autograd.grad(model(given).sum(), given)[0],
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_sum_with_a_number_or_of_different_shapes_is_left_to_torch():
    maps = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(add_relu(maps, torch.ones(3, 1, 1), 6.0), (maps + 1).clamp(0, 6))
    torch.testing.assert_close(add_relu(maps.double(), maps.double(), -1.0), 2 * maps.double())
    assert add_relu(torch.tensor([[float("nan")]]), torch.ones(1, 1), math.inf).isnan().all()


@pytest.mark.parametrize("size", [1, 4])
def test_it_compiles_to_one_graph(size):
    model = scattered(vgg())
    fast, x = rewire.pack(model), batch(0, IMAGE, size)[0]
    compiled = torch.compile(fast, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_dense_layers_stay_dense():
    model = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 20))
    model[2].weight.data.mul_(torch.eye(20))
    fast = rewire.pack(model)
    assert not isinstance(fast.get_submodule("0"), Packed)
    assert isinstance(fast.get_submodule("2"), Packed)
    assert isinstance(rewire.pack(model, densest=1.0).get_submodule("0"), Packed)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [1, 3, 64])
def test_a_dense_layer_behind_a_packed_one_reads_its_memory_format(bias, size):
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4, bias=bias), nn.Softmax(-1))
    model[0].weight.data.mul_(torch.rand(30, 20) < 0.2)
    fast, x = rewire.pack(model), torch.randn(size, 20)
    assert type(fast.get_submodule("2")) is HwcnLinear
    hidden = fast.get_submodule("0")(x)
    assert hidden.t().is_contiguous()
    torch.testing.assert_close(fast(x), model(x))
    last = fast.get_submodule("2")
    torch.testing.assert_close(last(hidden.contiguous()), last(hidden))
    torch.testing.assert_close(last(hidden[None]), last(hidden)[None])  # three dimensions: left to torch


def test_measuring_decides_layer_by_layer(monkeypatch):
    model = Residual().eval()
    x = batch(0, IMAGE)[0]
    with pytest.raises(ValueError, match="measure=True needs an example"):
        rewire.pack(model, measure=True)
    seen = []
    monkeypatch.setattr(
        "rewire.inference.choose.is_faster_packed", lambda module, given: seen.append(given.shape) or given.dim() == 2
    )
    fast = rewire.pack(model, x, measure=True)
    assert [tuple(shape) for shape in seen] == [(16, 3, 8, 8), (16, 8, 8, 8), (16, 8, 8, 8), (16, 8)]
    assert [layer.dense_shape for layer in packed_layers(fast)] == [(4, 8)]
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    monkeypatch.undo()
    torch.testing.assert_close(rewire.pack(model, x, measure=True)(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 64])
def test_measuring_takes_whatever_is_faster(size, monkeypatch):
    """A clock that calls one way of computing a layer slow: the other one is taken, layer by layer."""
    model, optimizer, _rewirer = sparse("masked", "vgg", rewire.static(density=0.2), dtype=torch.float32)
    train(model, optimizer, 2, shape=IMAGE)
    x, now = batch(0, IMAGE, size)[0], [0.0]
    costs = {nn.Conv2d: 3.0, nn.Linear: 1.0, PackedConv2d: 2.0, PackedLinear: 2.0}

    def spend(module, _args, _output):
        now[0] += costs.get(type(module), 0.0)

    monkeypatch.setattr("rewire.inference.choose.time.perf_counter", lambda: now[0])
    hook = nn.modules.module.register_module_forward_hook(spend)
    try:
        fast = rewire.pack(model, x, measure=True)
    finally:
        hook.remove()
    assert [type(layer) for layer in packed_layers(fast)] == [PackedConv2d, PackedConv2d]
    torch.testing.assert_close(fast(x), model.eval()(x), rtol=1e-4, atol=1e-5)


def test_a_layer_without_any_weight_is_packed():
    model = vgg().eval()
    model[4].weight.data.zero_()
    x = batch(0, IMAGE)[0]
    torch.testing.assert_close(rewire.pack(model, densest=1.0)(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_model_that_cannot_be_traced_is_packed_without_fusing():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x):
            return self.layer(x) if x.sum() > 0 else x

    model = Branching()
    model.layer.weight.data.mul_(torch.eye(6))
    with pytest.warns(UserWarning, match="cannot be traced .* batch norm and ReLU are not fused"):
        fast = rewire.pack(model)
    x = torch.rand(3, 6)
    torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("name", ["resnet-18", "mobilenet-v2"])
def test_the_papers_networks(name):
    model = models.build(name, classes=10, image=(3, 32, 32), width=0.25, seed=0)
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    rewire.sparsify(model, optimizer, rewire.static(density=0.1, start="connected-erk"), init="fan_in")
    model(torch.randn(8, 3, 32, 32))
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(rewire.pack(model)(x), model.eval()(x), rtol=1e-3, atol=1e-4)
