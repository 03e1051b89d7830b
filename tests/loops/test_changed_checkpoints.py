"""Checkpoints that other code kept, filtered or averaged: they load as they were, or are refused by name."""

import copy

import pytest
import torch
from tests.loops.loops import both_stores, dense, masks, sparse, train
from tests.networks import mlp
from torch import nn

import rewire

pytestmark = pytest.mark.usefixtures("one_thread")


def trained(store, steps=5):
    model, optimizer, rewirer = sparse(store, "rigl", model=mlp(dtype=torch.float64))
    train(model, optimizer, steps)
    return model, optimizer, rewirer


def topologies(model):
    return [mask.clone() for mask in masks(model)]


def test_a_state_dict_that_was_not_copied_keeps_values_and_positions_together():
    """Its values belong to the model until a rewiring moves them; from then on nothing writes into them."""
    model, optimizer, rewirer = trained("packed")
    kept, before, positions = model.state_dict(), dense(model), topologies(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    rewired = len(rewirer.history)
    train(model, optimizer, 9, begin=5)
    assert len(rewirer.history) > rewired
    assert any(not torch.equal(one, other) for one, other in zip(topologies(model), positions, strict=True))
    model.load_state_dict(kept)
    rewirer.check()
    assert all(torch.equal(one, other) for one, other in zip(dense(model), before, strict=True))


def test_loading_another_checkpoint_leaves_an_older_dictionary_as_it_was():
    model, optimizer, _ = trained("packed")
    first = copy.deepcopy(model.state_dict())
    train(model, optimizer, 9, begin=5)
    second, expected = model.state_dict(), dense(model)
    model.load_state_dict(first)
    model.load_state_dict(second)
    assert all(torch.equal(*pair) for pair in zip(dense(model)[::2], expected[::2], strict=True))  # biases are shared


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("target", ["masked", "packed"])
def test_values_without_positions_are_refused(target, strict):
    source = trained("packed")[0]
    parameters = {name: parameter.detach().clone() for name, parameter in source.named_parameters()}
    model, rewirer = (source, None) if target == "packed" else trained("masked")[::2]
    before = dense(model)
    with pytest.raises(RuntimeError, match=r"0.weight: the checkpoint has values of a packed weight without") as error:
        model.load_state_dict(parameters, strict=strict)
    assert "dense model" not in str(error.value)
    assert all(torch.equal(one, other) for one, other in zip(dense(model)[:1], before[:1], strict=True))
    if rewirer is not None:
        rewirer.check()


def test_parameters_alone_go_back_into_a_masked_model():
    model, _, rewirer = trained("masked")
    expected = dense(model)
    parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for layer in rewirer.layers:
            layer.parameter.mul_(2)
    model.load_state_dict(parameters, strict=False)
    assert all(torch.equal(one, other) for one, other in zip(dense(model), expected, strict=True))


@both_stores
def test_averaged_checkpoints_are_refused(store):
    model, optimizer, rewirer = trained(store)
    states = [copy.deepcopy(model.state_dict())]
    train(model, optimizer, 9, begin=5)
    states.append(copy.deepcopy(model.state_dict()))
    averaged = {key: sum(state[key] for state in states) / len(states) for key in states[0]}
    before = dense(model)
    with pytest.raises(RuntimeError, match=r"0.weight: its (mask|positions) in the checkpoint .*register_average"):
        model.load_state_dict(averaged)
    rewirer.check()
    assert torch.equal(dense(model)[0], before[0])


@both_stores
@pytest.mark.parametrize("strict", [True, False])
def test_a_topology_without_its_weight_is_left_out(store, strict):
    """The head of a checkpoint is deleted by name before fine-tuning, and its mask or positions are forgotten."""
    model, optimizer, rewirer = trained(store)
    state = copy.deepcopy(model.state_dict())
    train(model, optimizer, 9, begin=5)
    own = dense(model)
    for name in ("4.weight", "4.bias"):
        del state[name]
    if strict:
        with pytest.raises(RuntimeError, match="Missing key"):
            model.load_state_dict(state)
    else:
        model.load_state_dict(state, strict=False)
    assert torch.equal(dense(model)[-2], own[-2])  # the weight of the head; its bias is last
    train(model, optimizer, 5, begin=14)
    rewirer.check()


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([3, 1, 2], "not in ascending order"),
        ([1, 1, 2], "not in ascending order"),
        ([0, 1, 8], r"go from 0 to 8, but the weight has the shape \(2, 4\) here"),
        ([-1, 1, 2], "go from -1 to 2"),
        ([0, 1], r"values of shape \(3,\) and positions of shape \(2,\)"),
        ([0.0, 1.0, 2.0], "torch.float32, not integers"),
    ],
)
def test_impossible_positions_are_refused(positions, message):
    model = nn.Sequential(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.5), store="packed")
    state = model.state_dict() | {"0.weight": torch.ones(3), "0.weight_positions": torch.tensor(positions)}
    with pytest.raises(RuntimeError, match=message):
        model.load_state_dict(state)
    rewirer.check()
    model.load_state_dict(state | {"0.weight_positions": torch.tensor([0, 5, 7])})
    assert model[0].weight.flatten().nonzero().flatten().tolist() == [0, 5, 7]


@both_stores
def test_parameters_are_not_replaced_under_a_rewirer(store):
    model, optimizer, rewirer = trained(store)
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match=r"assign=True\) would replace the (weight|values) of 0, which "):
        model.load_state_dict(state, assign=True)
    train(model, optimizer, 5, begin=5)
    rewirer.check()
    assert len(rewirer.history) > 1
    rewirer.remove()
    model.load_state_dict(rewire.to_dense(model).state_dict(), assign=True)


def test_a_masked_copy_may_get_new_parameters():
    model, _, _ = trained("masked")
    copied = copy.deepcopy(model)
    copied.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    own = torch.optim.SGD(copied.parameters(), lr=0.1)
    train(copied, own, 3)
    assert all(not weight[~mask].any() for weight, mask in zip(dense(copied)[::2], masks(copied), strict=True))
