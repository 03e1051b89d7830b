"""Weights and topology are loaded alone, in the middle of a training: what becomes of the optimizer's state."""

import copy

import pytest
import torch
from tests.loops.loops import both_stores, dense, masks, sparse, train
from tests.networks import OPTIMIZERS, mlp

import rewire

pytestmark = pytest.mark.usefixtures("one_thread")

METHODS = {
    "rigl": rewire.rigl(density=0.3, every=2, until=1000, fraction=0.4),
    "ggr": rewire.ggr(density=0.3, every=2, until=1000, fraction=0.4),
    "gmp": rewire.gmp(density=0.2, every=2, until=20),
}


def trained(store, name="momentum", method="rigl"):
    """A model some rewirings after its best weights, and these weights."""
    model = mlp(dtype=torch.float64)
    optimizer = OPTIMIZERS[name](model.parameters())
    rewirer = rewire.sparsify(model, optimizer, METHODS[method], store=store)
    train(model, optimizer, 3)
    best = copy.deepcopy(model.state_dict())
    train(model, optimizer, 7, begin=3)
    return model, optimizer, rewirer, best


def state_by_position(layer, optimizer, key):
    values = layer.read_state(optimizer.state[layer.parameter][key])
    return dict(zip(layer.active().tolist(), values.tolist(), strict=True))


@both_stores
@pytest.mark.parametrize("method", list(METHODS))
def test_state_stays_with_its_position(store, method):
    model, optimizer, rewirer, best = trained(store, method=method)
    before = [state_by_position(layer, optimizer, "momentum_buffer") for layer in rewirer.layers]
    model.load_state_dict(best)
    if method != "gmp":  # whose best weights are more than its budget is now
        rewirer.check()
    optimizer.state_dict()  # what is saved fits the weights
    for layer, old in zip(rewirer.layers, before, strict=True):
        if store == "packed":
            saved = state_by_position(layer, optimizer, "momentum_buffer")
            assert saved == {position: old.get(position, 0.0) for position in saved}
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for layer, old in zip(rewirer.layers, before, strict=True):
        after = state_by_position(layer, optimizer, "momentum_buffer")
        assert after == pytest.approx({position: 0.9 * old.get(position, 0.0) for position in after})
        assert old.keys() != after.keys()
    if method != "gmp":
        rewirer.check()


@pytest.mark.parametrize("name", ["momentum", "adam", "rmsprop", "adagrad"])
@pytest.mark.parametrize("method", list(METHODS))
def test_both_stores_go_on_alike(name, method):
    runs = []
    for store in ("masked", "packed"):
        model, optimizer, rewirer, best = trained(store, name, method)
        model.load_state_dict(best)
        train(model, optimizer, 5, begin=10)
        if method != "gmp":
            rewirer.check()
        runs.append(model)
    for one, other in zip(masks(runs[0]), masks(runs[1]), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(dense(runs[0]), dense(runs[1]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@both_stores
def test_loading_other_weights_for_an_evaluation_and_the_own_ones_again_changes_nothing(store):
    whole, looked = trained(store), trained(store)
    own = copy.deepcopy(looked[0].state_dict())
    looked[0].load_state_dict(looked[3])
    looked[0].load_state_dict(own)
    for model, optimizer, *_ in (whole, looked):
        train(model, optimizer, 5, begin=10)
    for one, other in zip(dense(whole[0]), dense(looked[0]), strict=True):
        assert torch.equal(one, other)


@both_stores
@pytest.mark.parametrize("order", ["mor", "omr", "rom", "orm"])
def test_going_back_with_all_states_is_exact_in_any_order(store, order):
    model, optimizer, rewirer, _ = trained(store, "adam")
    parts = {"m": model, "o": optimizer, "r": rewirer}
    states = {key: copy.deepcopy(part.state_dict()) for key, part in parts.items()}
    train(model, optimizer, 5, begin=10)
    expected = dense(model)
    train(model, optimizer, 4, begin=15)
    for key in order:
        parts[key].load_state_dict(copy.deepcopy(states[key]))
    train(model, optimizer, 5, begin=10)
    assert all(torch.equal(one, other) for one, other in zip(dense(model), expected, strict=True))


@both_stores
def test_all_states_are_loaded_between_backward_and_step(store):
    """Gradients of the old topology move no weight that does not exist, and no weight of another position."""
    model, optimizer, rewirer = sparse(store, "rigl", model=mlp(dtype=torch.float64))
    train(model, optimizer, 1)
    parts = (model, optimizer, rewirer)
    states = [copy.deepcopy(part.state_dict()) for part in parts]
    train(model, optimizer, 9, begin=1)
    model(torch.randn(4, 12, dtype=torch.float64)).square().mean().backward()
    for part, state in zip(parts, states, strict=True):
        part.load_state_dict(state)
    optimizer.step()
    rewirer.check()
    for layer in rewirer.layers:
        if store == "masked":
            assert not layer.parameter[~layer.mask].any()


def test_the_state_of_another_topology_is_refused_by_name():
    model, optimizer, _, _ = trained("packed", method="gmp")
    early = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, 6, begin=10)
    optimizer.load_state_dict(early)
    with pytest.raises(ValueError, match=r"momentum_buffer was loaded into SGD with \d+ values for 0, which has"):
        train(model, optimizer, 1)
