"""Newborn weights: their first updates are those of a freshly started optimizer, or gentler."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.networks import batch, mlp
from tests.stores.packing import topology, weights
from torch import nn

import rewire
from rewire.stores.optimizer import register
from rewire.stores.optimizer.rules import rule_of

LR = 0.01
MAKE = {
    "sgd": lambda p: torch.optim.SGD(p, lr=LR),
    "momentum": lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9, dampening=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=LR),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=LR, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=LR),
    "fused": lambda p: torch.optim.AdamW(p, lr=LR, fused=True),
    "foreach": lambda p: torch.optim.AdamW(p, lr=LR, foreach=True),
    "capturable": lambda p: torch.optim.Adam(p, lr=torch.tensor(LR), betas=(0.8, 0.99)),
    "nadam": lambda p: torch.optim.NAdam(p, lr=LR),
    "radam": lambda p: torch.optim.RAdam(p, lr=LR),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=LR),
    "centered": lambda p: torch.optim.RMSprop(p, lr=LR, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=LR, initial_accumulator_value=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p, lr=LR),
    "rprop": lambda p: torch.optim.Rprop(p, lr=LR),
    "asgd": lambda p: torch.optim.ASGD(p, lr=LR),
}
SHAPE, STEPS = (100, 80), 20


def gradients(stream, step, scale=1.0):
    generator = torch.Generator().manual_seed(step if stream == "random" else 7)
    return torch.randn(SHAPE, generator=generator, dtype=torch.float64) * scale


def grown(make, age, stream="constant", store="masked", before=1.0):
    """A layer that was rewired after ``age`` steps, and which of its weights are newborn.

    Gradients were ``before`` times as large until then.
    """
    torch.manual_seed(0)
    model = nn.Linear(SHAPE[1], SHAPE[0], bias=False, dtype=torch.float64)
    optimizer = make(model.parameters())
    method = rewire.rigl(density=0.3, every=age, until=age, fraction=0.3)
    method = replace(method, regrow_dropped=False)
    rewirer = rewire.sparsify(model, optimizer, method, store=store)
    old = rewirer.layers[0].active().clone()
    for step in range(age):
        give(rewirer, gradients(stream, step, before))
        optimizer.step()
    born = ~torch.isin(rewirer.layers[0].active(), old)
    assert born.any()
    return model, optimizer, rewirer, born


def give(rewirer, dense):
    """Set a gradient; a packed layer records none without a backward pass."""
    layer = rewirer.layers[0]
    if layer.parameter.dim() == 1:  # an input of one-hot vectors: the output gradient is the weight's
        layer.parameter.grad = None
        layer.module(torch.eye(SHAPE[1], dtype=dense.dtype)).backward(dense.t())
    else:
        layer.parameter.grad = dense.clone()


def updates(make, age, stream, store="masked", before=1.0):
    """The first updates of the newborn weights, and those of a fresh optimizer with the same gradients."""
    _, optimizer, rewirer, born = grown(make, age, stream, store, before)
    layer = rewirer.layers[0]
    positions = layer.active()[born]
    alone = nn.Parameter(torch.full((len(positions),), 1e-10, dtype=torch.float64))
    fresh = make([alone])
    moved = []
    for step in range(age, age + STEPS):
        dense = gradients(stream, step)
        was, was_alone = layer.read(rewire.core.Signal.WEIGHT)[born].clone(), alone.detach().clone()
        give(rewirer, dense)
        alone.grad = dense.flatten()[positions].clone()
        optimizer.step()
        fresh.step()
        now = layer.read(rewire.core.Signal.WEIGHT)[born]
        moved.append(((now - was).abs(), (alone.detach() - was_alone).abs()))
    return moved


@pytest.mark.parametrize("store", ["masked", "packed"])
@pytest.mark.parametrize("age", [1, 3, 300])
@pytest.mark.parametrize("name", [name for name in MAKE if name != "radam"])
def test_under_a_constant_gradient_no_update_is_larger_than_a_fresh_one(name, age, store):
    for k, (newborn, fresh) in enumerate(updates(MAKE[name], age, "constant", store), 1):
        assert (newborn <= fresh * (1 + 1e-6)).all(), (k, (newborn / fresh).max())
    assert newborn.min() > 0


@pytest.mark.parametrize("before", [1.0, 0.1])
@pytest.mark.parametrize("age", [1, 10, 300])
@pytest.mark.parametrize("name", [name for name in MAKE if name not in ("radam", "rprop")])
def test_under_random_gradients_updates_are_no_larger_than_fresh_ones(name, age, before):
    """In the root mean square over the newborn weights: the sum of random gradients may cancel in a single one."""
    for k, (newborn, fresh) in enumerate(updates(MAKE[name], age, "random", before=before), 1):
        assert newborn.square().mean().sqrt() <= fresh.square().mean().sqrt() * 1.01, k


def test_rprop_starts_with_the_learning_rate():
    for newborn, fresh in updates(MAKE["rprop"], 10, "random"):
        assert torch.equal(newborn, fresh)


@pytest.mark.parametrize("stream", ["constant", "random"])
def test_radam_has_warmed_up_and_moves_newborn_weights_no_more_than_a_fresh_adam(stream):
    """A fresh RAdam takes five plain steps and then warms up for a thousand; that count belongs to the layer."""
    for (newborn, _), (_, adam) in zip(
        updates(MAKE["radam"], 300, stream), updates(MAKE["adam"], 300, stream), strict=True
    ):
        assert newborn.square().mean() <= adam.square().mean()


def test_the_second_moment_by_hand():
    model = nn.Linear(4, 2, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.5, 0.75))
    rewire.sparsify(model, optimizer, rewire.rigl(density=0.5, every=1, until=1, fraction=0.5))
    model.weight_mask.copy_(torch.tensor([[True, False, True, False], [False, True, False, True]]))
    model.weight.data.copy_(torch.tensor([[1.5, 0, 1.2, 0], [0, -9, 0, 9.0]]))
    model.weight.grad = torch.tensor([[0.4, 7.0, 0.1, -0.5], [3.0, 2.0, 0.0, 4.0]])
    optimizer.step()  # positions 0 and 2 go, 1 and 4 are born
    second = optimizer.state[model.weight]["exp_avg_sq"]
    assert second.tolist() == [[0, 0, 0, 0], [0, 1.0, 0, 4.0]]  # a quarter of the squares; 2.5 on average
    model.weight.grad = torch.tensor([[0.0, 1.0, 0.0, 0.0], [8.0, 2.0, 0.0, 4.0]])
    optimizer.step()
    # Corrected by c = 1/4, the newborn squares are 1/4 and 16 and their mean is 65/8: max(2.5, 65/8, ...) for both.
    born = [65 / 8, 16.0]
    squares = [1.0, 64.0]
    expected = [0.75 * v + 0.25 * g for v, g in zip(born, squares, strict=True)]
    assert second.flatten()[[1, 4]].tolist() == pytest.approx(expected)
    assert second.flatten()[[5, 7]].tolist() == [0.75 * 1 + 0.25 * 4, 0.75 * 4 + 0.25 * 16]


@pytest.mark.parametrize("name", ["adam", "rmsprop", "nadam"])
def test_surviving_weights_do_not_notice(name):
    model, optimizer, rewirer, born = grown(MAKE[name], 10, "random")
    plain = copy.deepcopy(model.weight)
    other = MAKE[name]([plain])
    other.state[plain] = copy.deepcopy(optimizer.state[model.weight])
    give(rewirer, gradients("random", 10))
    plain.grad = model.weight.grad * model.weight_mask
    optimizer.step()
    other.step()
    survives = rewirer.layers[0].active()[~born]
    assert torch.equal(model.weight.flatten()[survives], plain.flatten()[survives])
    moved = [one.flatten()[rewirer.layers[0].active()[born]].abs() for one in (model.weight, plain)]
    assert (moved[0] < 0.5 * moved[1]).all()


def test_ordinary_steps_do_not_look_at_the_state(monkeypatch):
    _, optimizer, rewirer, _ = grown(MAKE["adam"], 3)
    give(rewirer, gradients("random", 3))
    optimizer.step()
    monkeypatch.setattr(type(rewirer.layers[0]), "read_state", None)
    for step in range(4, 8):
        give(rewirer, gradients("random", step))
        optimizer.step()


# --- steps that are not made, layers that wait ------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("store", ["masked", "packed"])
def test_a_skipped_step_lets_newborn_weights_wait(store, fused):
    """The scale of the gradients makes no difference either."""
    moved = []
    for skips in (False, True):
        _, optimizer, rewirer, _ = grown(lambda p: torch.optim.Adam(p, lr=LR, fused=fused), 5, store=store)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0 if skips else 1.0)
        for factor in (float("inf"), 1.0) if skips else (1.0,):
            give(rewirer, gradients("constant", 0) * scaler.scale(torch.tensor(1.0)).double() * factor)
            scaler.step(optimizer)
            scaler.update()
        moved.append(optimizer.state[rewirer.layers[0].parameter]["exp_avg_sq"].flatten().clone())
    assert torch.equal(*moved)
    assert moved[0].max() < 10  # not of scaled gradients


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_a_layer_that_is_frozen_for_a_while_waits(store):
    _, optimizer, rewirer, born = grown(MAKE["adam"], 5, store=store)
    for _ in range(3):
        rewirer.layers[0].parameter.grad = None
        optimizer.step()
    was = rewirer.layers[0].read(rewire.core.Signal.WEIGHT)[born]
    give(rewirer, gradients("constant", 0))
    optimizer.step()
    moved = (rewirer.layers[0].read(rewire.core.Signal.WEIGHT)[born] - was).abs()
    assert 0 < moved.max() < 0.3 * LR  # a fifth step, so bias correction leaves it somewhat more than a tenth


def step_with(model, optimizer, x, y, form):
    def closure():
        optimizer.zero_grad()
        for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
            (F.cross_entropy(model(a), b) / 2).backward()
        return torch.tensor(0.0)

    optimizer.step(closure) if form == "closure" else (closure(), optimizer.step())


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_accumulated_gradients_and_closures(store):
    found = []
    for form in ("steps", "closure"):
        model = mlp(dtype=torch.float64)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
        rewirer = rewire.sparsify(model, optimizer, rewire.set_(density=0.3, every=2, until=100), store=store)
        for step in range(6):
            step_with(model, optimizer, *batch(step, dtype=torch.float64), form)
        found.append(weights(rewirer))
    assert torch.equal(*found)


# --- both stores, and checkpoints -------------------------------------------------------------------------------------


def trained(name, store, steps, begin=0, loaded=None, method="rigl"):
    model = mlp(dtype=torch.float64)
    optimizer = MAKE[name](model.parameters())
    method = rewire.METHODS[method](density=0.3, every=3, until=100, fraction=0.3)
    rewirer = rewire.sparsify(model, optimizer, method, store=store)
    parts = (model, optimizer, rewirer)
    for part, state in zip(parts, loaded or (), strict=False):
        part.load_state_dict(copy.deepcopy(state))
    for step in range(begin, begin + steps):
        x, y = batch(step, dtype=torch.float64)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return parts


@pytest.mark.parametrize("name", list(MAKE))
def test_both_stores_make_the_same_edits(name):
    (*_, masked), (*_, packed) = (trained(name, store, 14) for store in ("masked", "packed"))
    assert len(masked.history) == 4
    assert topology(masked) == topology(packed)
    torch.testing.assert_close(weights(masked), weights(packed), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["adamw", "rmsprop", "rprop"])
@pytest.mark.parametrize("store", ["masked", "packed"])
def test_a_checkpoint_between_a_rewiring_and_the_next_step(store, name):
    whole = trained(name, store, 8)[2]
    half = trained(name, store, 6)
    states = [part.state_dict() for part in half]
    assert states[2]["newborns"] == ["0", "2", "4"]
    assert torch.equal(weights(trained(name, store, 2, 6, states)[2]), weights(whole))
    del states[2]["newborns"]  # as in files of the version before, which leave it to the history
    assert torch.equal(weights(trained(name, store, 2, 6, states)[2]), weights(whole))


# --- optimizers of others ---------------------------------------------------------------------------------------------


class Foreign(torch.optim.Optimizer):
    """Adam under names of its own."""

    def __init__(self, params, lr=LR):
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999)})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state.update(n=0, first=torch.zeros_like(p), second=torch.zeros_like(p))
            state["n"] += 1
            state["first"].lerp_(p.grad, 0.1)
            state["second"].lerp_(p.grad.square(), 0.001)
            root = (state["second"] / (1 - 0.999 ** state["n"])).sqrt() + 1e-8
            p.sub_(self.param_groups[0]["lr"] * state["first"] / (1 - 0.9 ** state["n"]) / root)


class Registered(Foreign):
    pass


@pytest.mark.parametrize("store", ["masked", "packed"])
@pytest.mark.parametrize("kind", [Foreign, Registered])
def test_an_unknown_optimizer(kind, store):
    """What is never negative is taken for a second moment; registered, also the gradient's own square counts."""
    register(Registered, first=0.0, second="second_moment")
    for newborn, fresh in updates(kind, 300, "constant", store):
        limit = 1.0 if kind is Registered else 2.0
        assert newborn.square().mean().sqrt() <= limit * fresh.square().mean().sqrt()
    assert rule_of(Foreign([nn.Parameter(torch.ones(1))]), "second") is None


def test_registering_nonsense():
    with pytest.raises(TypeError, match="register takes the class of an optimizer, not 3"):
        register(3)
    with pytest.raises(TypeError, match="second must be a number, 'second_moment', 'shared' or"):
        register(Foreign, second=None)
