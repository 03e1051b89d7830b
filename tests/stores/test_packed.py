"""The packed store: the same edits and the same training as the masked one, with nothing dense held."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from tests.networks import OPTIMIZERS, batch, mlp, train
from tests.stores.packing import IMAGE, NETWORKS, sparse, topology, vgg, weights
from torch import nn

import rewire
from rewire.core.layer import Signal
from rewire.nn.hwcn import HwcnBatchNorm2d
from rewire.nn.packed import PackedConv2d, PackedLinear
from rewire.stores.inactive_gradient import gradient_tiles

PACKABLE = [name for name in rewire.METHODS if name != "snfs"]


pytestmark = pytest.mark.usefixtures("one_thread")


# --- masked and packed are one thing -------------------------------------------------------------------------------


@pytest.mark.parametrize("network", list(NETWORKS))
def test_fifty_steps_coincide_with_the_masked_store(network):
    found = []
    for store in ("masked", "packed"):
        model, optimizer, rewirer = sparse(store, network)
        losses = train(model, optimizer, 50, shape=NETWORKS[network][1], dtype=torch.float64)
        found.append((rewirer, losses))
    (masked, one), (packed, other) = found
    assert len(packed.history) == 10
    assert packed.history == masked.history
    assert topology(packed) == topology(masked)
    torch.testing.assert_close(weights(packed), weights(masked), rtol=1e-9, atol=1e-12)
    assert other == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("name", PACKABLE)
def test_every_method_and_optimizer_makes_the_same_edits(name, optimizer):
    found = []
    for store in ("masked", "packed"):
        method = rewire.METHODS[name](density=0.3, every=4, until=16, fraction=0.3)
        model, optimizer_, rewirer = sparse(store, method=method, optimizer=optimizer)
        train(model, optimizer_, 18, dtype=torch.float64)
        found.append(rewirer)
    assert found[0].history == found[1].history
    assert found[1].history or name in ("static", "deepr")  # whether a sign flips is up to the optimizer
    assert topology(found[0]) == topology(found[1])
    torch.testing.assert_close(weights(found[0]), weights(found[1]), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("network", ["vgg", "residual"])
def test_training_with_the_native_kernels(network):
    model, optimizer, rewirer = sparse(network=network, dtype=torch.float32)
    plain, plain_optimizer, _ = sparse("masked", network, dtype=torch.float32)
    losses = train(model, optimizer, 4, shape=IMAGE)
    torch.testing.assert_close(losses, train(plain, plain_optimizer, 4, shape=IMAGE), rtol=1e-4, atol=1e-5)
    assert any(isinstance(module, HwcnBatchNorm2d) for module in model.modules())
    for module, other in zip(model.modules(), plain.modules(), strict=True):
        if isinstance(module, nn.BatchNorm2d):
            torch.testing.assert_close(module.running_var, other.running_var, rtol=1e-3, atol=1e-4)
    x = batch(9, IMAGE)[0]
    torch.testing.assert_close(model.eval()(x), plain.eval()(x), rtol=1e-3, atol=1e-4)
    assert rewirer.nnz == sum(len(layer.parameter) for layer in rewirer.layers)


@pytest.mark.parametrize("network", ["mlp", "vgg"])
@pytest.mark.parametrize("form", ["micro-batches", "clipped", "held loss", "given up"])
def test_the_gradient_that_is_ranked_is_the_one_the_optimizer_uses(form, network):
    found, method = [], rewire.rigl(density=0.3, every=1, until=100, fraction=0.3)
    for store in ("masked", "packed"):
        model, optimizer, rewirer = sparse(store, network, method)
        kept = []
        for step in range(4):
            x, y = batch(step, NETWORKS[network][1], dtype=torch.float64)
            if form == "given up":
                F.cross_entropy(model(x + 1), y).backward()
                optimizer.zero_grad()
            parts = 4 if form == "micro-batches" else 1
            for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
                kept.append(F.cross_entropy(model(a), b) / parts)
                kept[-1].backward()
            if form == "clipped":  # not by norm, which differs where inactive gradients still exist
                for p in model.parameters():
                    p.grad.mul_(0.01)
            optimizer.step()
            optimizer.zero_grad()
        found.append((topology(rewirer), rewirer.history))
    assert found[0] == found[1]


# --- what exists, and what does not --------------------------------------------------------------------------------


def test_only_what_exists_has_values_gradients_and_state():
    model, optimizer, rewirer = sparse(network="vgg", optimizer="adam")
    objects = [id(layer.parameter) for layer in rewirer.layers]
    for step in range(12):
        x, y = batch(step, IMAGE, dtype=torch.float64)
        F.cross_entropy(model(x), y).backward()
        for layer in rewirer.layers:
            assert layer.parameter.grad.shape == (layer.nnz,)
        optimizer.step()
        optimizer.zero_grad()
    assert len({tuple(record.grown) for record in rewirer.history}) > 1  # densities moved
    assert [id(module.weight_values) for module in model if hasattr(module, "backward_record")] == objects
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert set(objects) <= held
    for layer in rewirer.layers:
        for state in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
            assert optimizer.state[layer.parameter][state].shape == (layer.nnz,)
    assert isinstance(model[0], PackedConv2d)
    assert isinstance(model[9], PackedLinear)


def test_a_grown_weight_starts_without_state():
    model, optimizer, rewirer = sparse(method=rewire.rigl(density=0.3, every=5, until=100, fraction=0.3))
    before = topology(rewirer)
    train(model, optimizer, 5, dtype=torch.float64)
    for layer, old in zip(rewirer.layers, before, strict=True):
        born = ~torch.isin(layer.active(), torch.tensor(old))
        assert born.any()
        assert (layer.read(Signal.WEIGHT)[born] == 1e-10).all()
        assert not optimizer.state[layer.parameter]["momentum_buffer"][born].any()


@pytest.mark.parametrize("size", [40, 80, 1000])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_gradient_in_tiles_is_the_dense_gradient(groups, size):
    conv = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=groups).double()
    x = torch.randn(5, 4, 7, 6, dtype=torch.float64)
    y = conv(x)
    grad = torch.randn_like(y)
    y.backward(grad)
    packed = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=groups).double()
    rewire.sparsify(packed, torch.optim.SGD(packed.parameters(), 0.1), rewire.static(density=0.5), store="packed")
    tiles = list(gradient_tiles([(x[:2], grad[:2]), (x[2:], grad[2:])], packed.geometry, size))
    assert all(len(tile) <= max(size, 36) for _, tile in tiles)  # one output has up to 36 weights
    assert len(tiles) == {40: {1: 8, 2: 4, 4: 2}, 80: {1: 4, 2: 2, 4: 1}, 1000: {1: 1, 2: 1, 4: 1}}[size][groups]
    assert [begin for begin, _ in tiles] == torch.tensor([0, *[len(t) for _, t in tiles]]).cumsum(0)[:-1].tolist()
    torch.testing.assert_close(torch.cat([tile for _, tile in tiles]), conv.weight.grad.flatten())


BIG = r"""
import re, torch
from pathlib import Path
from torch import nn
import torch.nn.functional as F
import rewire
with torch.device("meta"):
    model = nn.Linear(20_000, 20_000)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
rewirer = rewire.sparsify(model, optimizer, rewire.rigl(density=0.001, every=2, until=100), store="packed")
x, y = torch.randn(8, 20_000), torch.randint(20_000, (8,))
losses = []
for _ in range(3):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert len(rewirer.history) == 1 and rewirer.nnz == 400_000 and losses[-1] < losses[0], losses
print(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


def test_a_layer_that_would_not_fit_in_memory_is_trained():
    done = subprocess.run([sys.executable, "-c", BIG], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1500  # megabytes; dense weights, gradients and Adam's state would take 6,400


def test_meta_layers_are_drawn_as_torch_draws_them():
    with torch.device("meta"):
        model = nn.Linear(400, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewire.sparsify(model, optimizer, rewire.static(density=0.1), store="packed")
    assert float(model.weight_values.detach().abs().max()) == pytest.approx(400**-0.5, rel=1e-2)
    assert float(model.bias.detach().abs().max()) <= 400**-0.5
    with torch.device("meta"):
        other = nn.Linear(4, 3)
    with pytest.raises(ValueError, match=r"weight is on the meta device.*store='packed'"):
        rewire.sparsify(other, torch.optim.SGD(other.parameters(), lr=0.1), rewire.static(density=0.5))


# --- what is refused, and what stays masked ------------------------------------------------------------------------


def test_layers_without_a_kernel_stay_masked_and_the_table_says_so():
    class Doubled(nn.Linear):
        def forward(self, x):
            return nn.functional.linear(x, 2 * self.weight, self.bias)

    padded = nn.Conv1d(1, 4, 3, padding=1, padding_mode="circular")
    model = nn.Sequential(padded, nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), Doubled(8, 4))
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    rewirer = rewire.sparsify(model, optimizer, rewire.ggr(density=0.3, every=2, until=100), store="packed")
    train(model, optimizer, 5, shape=(1, 12))
    assert len(rewirer.history) == 2
    assert "store packed" in str(rewirer)
    assert "masked: 0 (no kernel for padding_mode='circular')" in str(rewirer)
    assert "masked: 4 (no kernel for the forward of Doubled)" in str(rewirer)
    assert model[4].weight.shape == (4, 8)
    assert model[2].weight_values.dim() == 1


def test_momentum_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="the method reads momentum, which the packed store cannot supply"):
        sparse(method=rewire.snfs(density=0.3, every=5, until=100))


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.Muon])
def test_an_optimizer_that_needs_whole_weights_is_refused_at_once(kind):
    model = nn.Sequential(nn.Linear(12, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False))
    optimizer = kind(model.parameters())
    with pytest.raises(ValueError, match=f"{kind.__name__} needs whole weights, .*: use store='masked'"):
        rewire.sparsify(model, optimizer, rewire.static(density=0.5), store="packed")
    assert model[0].weight.shape == (8, 12)
    assert type(model[0]) is nn.Linear


def test_an_optimizer_whose_state_cannot_move_is_refused_when_it_shows():
    class Rows(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["halves"] = parameter.new_zeros(len(parameter), 2)

    model = mlp()
    optimizer = Rows(model.parameters(), lr=0.1)
    rewire.sparsify(model, optimizer, rewire.static(density=0.5), store="packed")
    with pytest.raises(ValueError, match="Rows keeps state that has no entry for each weight.*: use store='masked'"):
        train(model, optimizer, 1)


def test_an_input_that_does_not_fit_is_refused():
    model, _optimizer, _rewirer = sparse(dtype=torch.float32)
    with pytest.raises(ValueError, match=r"the layer has 12 inputs and was given \(2, 11\)"):
        model(torch.randn(2, 11))


def test_under_autocast_a_packed_layer_takes_what_a_dense_one_gives():
    model = vgg()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    method = rewire.ggr(density=0.3, every=2, until=100)
    rewirer = rewire.sparsify(model, optimizer, method, store="packed", exclude=["0", "9"])  # these give bfloat16
    train(model, optimizer, 5, shape=IMAGE, autocast=True)
    assert len(rewirer.history) == 2
    assert {layer.name for layer in rewirer.layers} == {"4", "11"}
