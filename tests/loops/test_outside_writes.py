"""Writes to the weights of a model under a Rewirer that are neither the optimizer's nor the Rewirer's."""

import warnings

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
def test_a_write_is_undone_at_the_next_step_and_mentioned(write, optimizer):
    model = mlp(dtype=torch.float64)
    optimizer = optimizer(model.parameters(), lr=0.01)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.2))
    train(model, optimizer, 2)
    nnz = rewirer.nnz
    for layer in rewirer.layers:
        write(layer.parameter)
    with pytest.warns(UserWarning, match="other than the optimizer has written to the weight of 0, 2, 4, also where"):
        train(model, optimizer, 1, begin=2)
    assert_zero_off_mask(model)
    rewirer.check()
    assert rewirer.nnz == nnz


def test_writes_that_keep_the_topology_are_not_mentioned():
    """Weights that are clipped or scaled after each step, as some losses ask for, in place and by a new tensor."""
    model, optimizer, rewirer = sparse("masked")

    def clip(_step):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.5, 0.5)
        model[0].weight.data = model[0].weight.data * 0.9

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, 8, after=clip)
    rewirer.check()
    assert len(rewirer.history) == 2


def test_the_warning_comes_once_and_names_a_few_layers():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(12, 12) for _ in range(5))).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.2))

    def write_and_step(step):
        for layer in rewirer.layers:
            layer.parameter.data.fill_(1.0)
        train(model, optimizer, 1, begin=step)

    with pytest.warns(UserWarning, match="the weight of 0, 1, 2 and 2 more layers, also where no weight exists"):
        write_and_step(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_and_step(1)
    rewirer.check()


def test_an_average_of_tensors_that_was_not_declared_is_noticed_when_it_is_copied_back():
    model, optimizer, _ = sparse("masked", "rigl")
    average = [parameter.detach().clone() for parameter in model.parameters()]
    train(
        model,
        optimizer,
        8,
        after=lambda _: torch._foreach_lerp_(average, [p.detach() for p in model.parameters()], 0.2),
    )
    for parameter, value in zip(model.parameters(), average, strict=True):
        parameter.data.copy_(value)
    with pytest.warns(UserWarning, match=r"rewirer\.register_average"):
        train(model, optimizer, 1, begin=8)
    assert_zero_off_mask(model)


def test_a_layer_without_inactive_weights_and_one_in_another_memory_format():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(32, 4)).double()
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    method = rewire.static(
        density=(0.3 * 216 + 128) / 344, start=rewire.parts.Scattered(rewire.parts.Explicit({"2": 1.0}))
    )
    rewirer = rewire.sparsify(model, optimizer, method)
    train(model, optimizer, 1, shape=(3, 4, 4))
    model[0].weight.data.fill_(1.0)
    model[2].weight.data.fill_(1.0)
    with pytest.warns(UserWarning, match="the weight of 0, also where"):
        train(model, optimizer, 1, begin=1, shape=(3, 4, 4))
    rewirer.check()


def test_a_write_through_data_to_a_part_is_undone_in_turn_in_large_models():
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
        layer.parameter.data[1:].fill_(1e-3)
    with pytest.raises(RuntimeError, match="weights are not zero where no weight exists"):
        rewirer.check()
    steps = 0
    while any(bool(layer.parameter[~layer.mask].any()) for layer in rewirer.layers):
        step()
        steps += 1
        assert steps <= 35  # 1.8 million weights, 65,536 at a time, and the rest of a layer's last rows
    assert steps > 20
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
