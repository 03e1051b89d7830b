"""Writes to the weights of a model under a Rewirer that are neither the optimizer's nor the Rewirer's."""

import pytest
import torch
from tests.loops.loops import assert_zero_off_mask, batch, both_stores, masks, sparse, train
from tests.networks import mlp
from torch import nn

import rewire


def init(weight):
    nn.init.kaiming_uniform_(weight)


def copy_(weight):
    with torch.no_grad():
        weight.copy_(torch.ones_like(weight))


def data_copy_(weight):
    weight.data.copy_(torch.ones_like(weight))


def new_data(weight):
    weight.data = torch.ones_like(weight)


@pytest.mark.parametrize("write", [init, copy_, data_copy_, new_data])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_write_is_undone_within_a_few_steps(write, optimizer):
    model = mlp(dtype=torch.float64)
    optimizer = optimizer(model.parameters(), lr=0.01)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.2))
    train(model, optimizer, 2)
    nnz = rewirer.nnz
    for layer in rewirer.layers:
        write(layer.parameter)
    train(model, optimizer, 1 if write in (init, copy_) else 2, begin=2)
    assert_zero_off_mask(model)
    rewirer.check()
    assert rewirer.nnz == nnz


def test_a_write_through_data_is_undone_in_turn_in_large_models():
    """At most so many weights at each step that nobody notices the time."""
    model = nn.Sequential(nn.Linear(700, 600), nn.Linear(600, 700), *(nn.Linear(700, 700) for _ in range(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.2))
    x = torch.randn(2, 700)

    def step():
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    for layer in rewirer.layers:
        layer.parameter.data.fill_(1e-3)
    with pytest.raises(RuntimeError, match="weights are not zero where no weight exists"):
        rewirer.check()
    steps = 0
    while any(bool(layer.parameter[~layer.mask].any()) for layer in rewirer.layers):
        step()
        steps += 1
        assert steps <= 10
    assert steps > 2
    rewirer.check()


@both_stores
def test_loading_the_values_of_a_dense_model(store):
    model, _, rewirer = sparse(store)
    plain = mlp(seed=7, dtype=torch.float64)
    before = [mask.clone() for mask in masks(model)]
    model.load_state_dict(plain.state_dict(), strict=False)
    assert all(torch.equal(a, b) for a, b in zip(masks(model), before, strict=True))
    x = batch(0)[0]
    for module, mask in zip((plain[0], plain[2], plain[4]), before, strict=True):
        module.weight.data.masked_fill_(~mask, 0.0)
    torch.testing.assert_close(model(x), plain(x))  # at once, before any step
    rewirer.check()


@both_stores
def test_loading_a_dense_model_strictly_says_what_to_do(store):
    model, _, _ = sparse(store)
    with pytest.raises(RuntimeError) as raised:
        model.load_state_dict(mlp(dtype=torch.float64).state_dict())
    assert str(raised.value).count("load it before sparsify, or with strict=False") == 1


@both_stores
def test_missing_keys_of_a_dense_model_are_ordinary_strings(store):
    model, _, _ = sparse(store)
    keys = model.load_state_dict(mlp(dtype=torch.float64).state_dict(), strict=False).missing_keys
    name = "weight_mask" if store == "masked" else "weight_positions"
    assert keys == [f"{i}.{name}" for i in (0, 2, 4)]


def test_removing_the_rewirer_leaves_zeros():
    model, _, rewirer = sparse("masked")
    before = [mask.clone() for mask in masks(model)]
    model[0].weight.data.fill_(1.0)
    rewirer.remove()
    assert torch.equal(model[0].weight != 0, before[0])
