import copy

import pytest
import torch
import torch.nn.functional as F
from tests.networks import OPTIMIZERS, batch, mlp, train
from torch import nn

import rewire
from rewire.core.layer import Signal


def sparse(optimizer="momentum", method=None, model=None):
    model = model or mlp()
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    method = method or rewire.ggr(density=0.3, every=5, until=100)
    return model, optimizer, rewire.sparsify(model, optimizer, method)


def inactive_are_zero(rewirer, what):
    return all(not (what(layer) * ~layer.mask).any() for layer in rewirer.layers)


def test_gradients_of_inactive_weights_are_cleared_as_they_are_accumulated():
    model, _optimizer, rewirer = sparse()
    for step in range(2):
        x, y = batch(step)
        F.cross_entropy(model(x), y).backward()
        assert inactive_are_zero(rewirer, lambda layer: layer.parameter.grad)


def test_not_a_number_at_an_inactive_position_is_cleared_too():
    _model, optimizer, rewirer = sparse()
    layer = rewirer.layers[0]
    layer.parameter.grad = torch.full(layer.shape, float("nan")).where(~layer.mask, torch.ones(layer.shape))
    optimizer.step()
    assert torch.isfinite(layer.parameter).all()


def test_gradients_set_or_changed_by_hand_are_cleared_at_the_step():
    model, optimizer, rewirer = sparse()
    for layer in rewirer.layers:
        layer.parameter.grad = torch.ones(layer.shape)
    optimizer.step()
    assert inactive_are_zero(rewirer, lambda layer: layer.parameter)
    x, y = batch(0)
    F.cross_entropy(model(x), y).backward()
    for layer in rewirer.layers:
        layer.parameter.grad.add_(1.0)  # noise on the gradient, say
    optimizer.step()
    assert inactive_are_zero(rewirer, lambda layer: layer.parameter)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Rprop(p, lr=0.01),
        lambda p: torch.optim.ASGD(p, lr=0.01),
        lambda p: torch.optim.Adadelta(p),
        lambda p: torch.optim.Adamax(p),
        lambda p: torch.optim.NAdam(p),
        lambda p: torch.optim.RAdam(p),
        lambda p: torch.optim.Adafactor(p),
        lambda p: torch.optim.Adam(p, fused=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
        lambda p: torch.optim.Muon([q for q in p if q.ndim == 2], lr=0.01),
    ],
    ids=["rprop", "asgd", "adadelta", "adamax", "nadam", "radam", "adafactor", "fused", "foreach", "muon"],
)
def test_any_optimizer_leaves_inactive_weights_at_zero(make):
    model = mlp()
    optimizer = make(list(model.parameters()))
    rewirer = rewire.sparsify(model, optimizer, rewire.rigl(density=0.3, every=3, until=100))
    nnz = rewirer.nnz
    train(model, optimizer, 10, after=lambda _step: _check(rewirer, nnz))
    assert len(rewirer.history) == 3


def _check(rewirer, nnz):
    assert rewirer.nnz == nnz
    assert inactive_are_zero(rewirer, lambda layer: layer.parameter)


def test_lbfgs_with_its_closure():
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    rewirer = rewire.sparsify(model, optimizer, rewire.rigl(density=0.3, every=2, until=100))
    x, y = batch(0)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(8)]
    assert losses[-1] < losses[0]
    assert len(rewirer.history) == 4
    assert inactive_are_zero(rewirer, lambda layer: layer.parameter)


@pytest.mark.parametrize("name", ["ggr", "snfs"])
def test_a_closure_gives_the_same_as_an_ordinary_step(name):
    weights = []
    for use_closure in (False, True):
        model, optimizer, rewirer = sparse(method=rewire.METHODS[name](density=0.3, every=2, until=100))
        for step in range(6):
            x, y = batch(step)

            def closure(model=model, optimizer=optimizer, x=x, y=y):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure) if use_closure else (closure(), optimizer.step())
        weights.append([layer.parameter.detach().clone() for layer in rewirer.layers])
        assert len(rewirer.history) == 3
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.filterwarnings("ignore:the model seems to be trained")
def test_state_that_existed_before_is_zero_where_no_weight_is():
    model = mlp()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    train(model, optimizer, 3)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.2))
    for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
        assert inactive_are_zero(rewirer, lambda layer, name=name: optimizer.state[layer.parameter][name])


def test_reading_signals():
    _model, _optimizer, rewirer = sparse(method=rewire.snfs(density=0.3, every=5, until=100))
    layer = rewirer.layers[0]
    with torch.no_grad():
        layer.parameter.mul_(-1)
    assert torch.equal(layer.read(Signal.SIGN), layer.parameter.detach()[layer.mask].sign())
    assert torch.equal(layer.read(Signal.GRAD), torch.zeros(layer.nnz))  # no gradient yet
    assert torch.equal(layer.read(Signal.MOMENTUM), torch.zeros(layer.nnz))


def test_momentum_is_the_average_of_the_dense_gradient():
    torch.manual_seed(0)
    model = nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewirer = rewire.sparsify(model, optimizer, rewire.snfs(density=0.5, every=100, until=100))
    average = torch.zeros(2, 3)
    for step in range(3):
        grad = torch.randn(2, 3)
        if step == 1:
            grad[0, 0] = float("inf")  # leaves the average of this weight as it was
        model.weight.grad = grad.clone()
        optimizer.step()
        average = torch.where(grad.isfinite(), average * 0.9 + grad * 0.1, average)
    assert torch.allclose(rewirer.layers[0].average, average)


def test_a_warm_up_from_zero_does_not_hide_an_optimizer_that_moves_everything():
    model = mlp()
    optimizer = torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=0.0)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.3))
    train(model, optimizer, 1)
    optimizer.param_groups[0]["lr"] = 0.1
    train(model, optimizer, 3, begin=1)
    assert inactive_are_zero(rewirer, lambda layer: layer.parameter)


@pytest.mark.parametrize("what", ["model", "optimizer", "weights"])
def test_going_back_to_an_older_state_of_one_revives_nothing(what):
    model, optimizer, rewirer = sparse(method=rewire.rigl(density=0.3, every=2, until=100, fraction=0.3))
    dense = {name: torch.ones_like(value) for name, value in mlp().state_dict().items()}
    train(model, optimizer, 1)
    older = {"model": copy.deepcopy(model.state_dict()), "optimizer": copy.deepcopy(optimizer.state_dict())}
    train(model, optimizer, 8, begin=1)
    if what == "weights":
        model.load_state_dict(dense, strict=False)
    else:
        {"model": model, "optimizer": optimizer}[what].load_state_dict(older[what])
    train(model, optimizer, 1, begin=9)
    assert inactive_are_zero(rewirer, lambda layer: layer.parameter)
    assert inactive_are_zero(rewirer, lambda layer: optimizer.state[layer.parameter]["momentum_buffer"])


def test_an_expanded_gradient():
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.5))
    model.weight.grad = torch.ones(1, 1).expand(4, 4)
    optimizer.step()
    assert inactive_are_zero(rewirer, lambda layer: layer.parameter)


def test_the_first_gradient_after_loading_another_topology_is_that_of_its_weights():
    model, _optimizer, _rewirer = sparse(method=rewire.rigl(density=0.1, every=2, until=100, fraction=0.5))
    other, other_optimizer, other_rewirer = sparse(method=rewire.rigl(density=0.1, every=2, until=100, fraction=0.5))
    train(other, other_optimizer, 4)
    model.load_state_dict(other.state_dict())
    x, y = batch(9)
    for one in (model, other):
        F.cross_entropy(one(x), y).backward()
    for layer, name in zip(other_rewirer.layers, ("0", "2", "4"), strict=True):
        assert torch.equal(model.get_submodule(name).weight.grad, layer.parameter.grad)
    assert other_rewirer.layers[0].parameter.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_clearing_by_bits_and_by_mask_are_the_same(dtype, monkeypatch):
    cleared = []
    for small in (1 << 20, 0):
        monkeypatch.setattr("rewire.stores.masked_layer.SMALL", small)
        model = mlp(dtype=dtype)
        rewirer = rewire.sparsify(model, OPTIMIZERS["sgd"](model.parameters()), rewire.static(density=0.3))
        layer = rewirer.layers[0]
        assert (layer._bit_mask is None) == (small == 0)
        generator = torch.Generator().manual_seed(0)
        layer.parameter.grad = torch.randn(layer.shape, generator=generator).to(dtype)
        layer.parameter.grad[0, :6] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-30, 3.0])
        layer.clear_inactive_grad()
        assert not layer.parameter.grad[~layer.mask].any()
        cleared.append(layer.parameter.grad)
    assert torch.equal(cleared[0].nan_to_num(7.0), cleared[1].nan_to_num(7.0))
