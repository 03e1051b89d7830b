"""Averages that are not an ``AveragedModel``: declared with one line they follow, undeclared they are refused."""

import copy

import pytest
import torch
from tests.loops.loops import assert_same_topology, batch, both_methods, both_stores, dense, sparse, train
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

pytestmark = pytest.mark.usefixtures("one_thread")
DECAY = 0.8


def lerp(copied, model):
    with torch.no_grad():
        for mine, theirs in zip(copied.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 1 - DECAY)


def through_data(copied, model):
    for mine, theirs in zip(copied.parameters(), model.parameters(), strict=True):
        mine.data.mul_(DECAY).add_(theirs.data, alpha=1 - DECAY)


def foreach(copied, model):
    with torch.no_grad():
        torch._foreach_lerp_(list(copied.parameters()), list(model.parameters()), 1 - DECAY)


def state_dicts(copied, model):
    """As timm does: everything in the state_dict, and what is not a floating-point number is copied."""
    with torch.no_grad():
        for mine, theirs in zip(copied.state_dict().values(), model.state_dict().values(), strict=True):
            mine.lerp_(theirs, 1 - DECAY) if mine.is_floating_point() else mine.copy_(theirs)


def and_buffers(copied, model):
    lerp(copied, model)
    with torch.no_grad():
        for mine, theirs in zip(copied.buffers(), model.buffers(), strict=True):
            mine.copy_(DECAY * mine + (1 - DECAY) * theirs)


UPDATES = [lerp, through_data, foreach, state_dicts, and_buffers]


class Wrapper:
    """As timm and others keep it."""

    def __init__(self, model):
        self.module = copy.deepcopy(model).eval()


@both_stores
@both_methods
@pytest.mark.parametrize("update", UPDATES)
def test_a_declared_copy_follows(store, method, update):
    model, optimizer, rewirer = sparse(store, method)
    reference = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    reference.n_averaged += 1  # it begins with the values at the start, as the others do
    wrapper, plain = Wrapper(model), copy.deepcopy(model)
    rewirer.register_average(wrapper, plain)

    def after(_step):
        reference.update_parameters(model)
        for one in (wrapper.module, plain):
            update(one, model)
            one(batch(0)[0])
            rewirer.check()

    train(model, optimizer, 10, after=after)
    for one in (wrapper.module, plain):
        assert_same_topology(one, model)
        for mine, theirs in zip(dense(one), dense(reference.module), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


@both_stores
@both_methods
@pytest.mark.parametrize("update", UPDATES)
def test_an_undeclared_average_is_right_until_a_rewiring_and_then_raises(store, method, update):
    model, optimizer, _ = sparse(store, method)
    copied = copy.deepcopy(model)

    def after(_step):
        update(copied, model)
        copied(batch(0)[0])

    train(model, optimizer, 2, after=after)
    with pytest.raises((RuntimeError, ValueError)) as raised:  # numbers of weights that differ are torch's own error
        train(model, optimizer, 8, begin=2, after=after)
    if store == "masked" or method == "rigl":
        assert "rewirer.register_average(copy)" in str(raised.value)
        assert str(raised.value).startswith("0 of this copy was written to")


@both_stores
def test_a_copy_of_all_weights_at_every_rewiring_needs_no_declaration(store):
    model, optimizer, rewirer = sparse(store, "ggr")
    copied = copy.deepcopy(model)

    def after(_step):
        if rewirer.history and rewirer.history[-1].step == rewirer.step:
            copied.load_state_dict(model.state_dict())
        lerp(copied, model)
        copied(batch(0)[0])

    train(model, optimizer, 8, after=after)
    assert_same_topology(copied, model)


@both_stores
@both_methods
@pytest.mark.parametrize("kind", ["list", "trained list", "dictionary"])
def test_tensors_that_are_averaged_follow(store, method, kind):
    model, optimizer, rewirer = sparse(store, method)
    model[4].bias.requires_grad_(kind != "trained list")
    copied = copy.deepcopy(model)
    if kind == "dictionary":
        tensors = {name: value.clone() for name, value in model.state_dict().items()}
    else:
        tensors = [p.detach().clone() for p in model.parameters() if p.requires_grad or kind == "list"]
    rewirer.register_average(copied, tensors)

    def after(_step):
        lerp(copied, model)
        if kind == "dictionary":
            for name, value in model.state_dict().items():
                if value.is_floating_point():
                    tensors[name] = tensors[name].lerp(value, 1 - DECAY)
        else:
            trained = [p for p in model.parameters() if p.requires_grad or kind == "list"]
            torch._foreach_lerp_(tensors, [p.detach() for p in trained], 1 - DECAY)
        rewirer.check()

    train(model, optimizer, 10, after=after)
    state = copied.state_dict() if kind == "dictionary" else None
    found = tensors.values() if kind == "dictionary" else tensors
    wanted = (
        state.values()
        if kind == "dictionary"
        else [p for p in copied.parameters() if p.requires_grad or kind == "list"]
    )
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=0, atol=1e-12)


@both_stores
def test_what_cannot_be_an_average(store):
    before = nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 4)).double()
    early = copy.deepcopy(before)
    model, optimizer, rewirer = sparse(store, "ggr", before)
    with pytest.raises(ValueError, match="it was made before sparsify"):
        rewirer.register_average(early)
    with pytest.raises(ValueError, match="Rewirer of its own"):
        rewirer.register_average(model)
    with pytest.raises(TypeError, match="not 3"):
        rewirer.register_average(3)
    with pytest.raises(ValueError, match="it has 1, and the model 4"):
        rewirer.register_average([torch.zeros(3)])
    with pytest.raises(ValueError, match="does not hold the weight of 0"):
        rewirer.register_average({})
    late = copy.deepcopy(model)
    train(model, optimizer, 4)
    with pytest.raises(ValueError, match="another topology than the model"):
        rewirer.register_average(late)
    late.load_state_dict(model.state_dict())
    rewirer.register_average(late)
    train(model, optimizer, 4, begin=4)
    assert_same_topology(late, model)
