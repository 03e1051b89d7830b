"""One rewirer over several optimizers: one budget, one ranking; a step is one step of each of them."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from tests.networks import batch, mlp
from tests.stores.packing import topology, weights
from torch import nn

import rewire
from rewire.distributed import load_latest, save

METHOD = rewire.ggr(density=0.3, every=2, until=100, fraction=0.3)


def halves(model, first=torch.optim.AdamW, second=torch.optim.SGD):
    """The first linear layer for one optimizer, the rest for the other."""
    parameters = list(model.parameters())
    return [first(parameters[:2], lr=0.01), second(parameters[2:], lr=0.1, momentum=0.9)]


def muon_and_adam(model):
    matrices = [p for p in model.parameters() if p.ndim == 2]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW([p for p in model.parameters() if p.ndim == 1])]


def sparse(make=halves, method=METHOD, **options):
    model = mlp(dtype=torch.float64)
    optimizers = make(model)
    return model, optimizers, rewire.sparsify(model, optimizers, method, **options)


def backward(model, step):
    x, y = batch(step, dtype=torch.float64)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss


def train(model, optimizers, steps, begin=0):
    losses = []
    for step in range(begin, begin + steps):
        losses.append(backward(model, step).item())
        for one in optimizers:
            one.step()
        for one in optimizers:
            one.zero_grad()
    return losses


@pytest.mark.parametrize("name", list(rewire.METHODS))
@pytest.mark.parametrize("store", ["masked", "packed"])
def test_two_halves_make_one(store, name):
    """The same algorithm twice, for two halves of the parameters, is the same as once for all."""
    if store == "packed" and name == "snfs":
        pytest.skip("the packed store supplies no momentum")
    method = rewire.METHODS[name](density=0.3, every=2, until=100, fraction=0.3)
    found = []
    for several in (False, True):
        model = mlp(dtype=torch.float64)
        parameters = list(model.parameters())
        groups = [parameters[:2], parameters[2:]] if several else [parameters]
        optimizers = [torch.optim.Adam(group, lr=0.01) for group in groups]
        rewirer = rewire.sparsify(model, optimizers if several else optimizers[0], method, store=store)
        train(model, optimizers, 9)
        found.append((rewirer.step, topology(rewirer), rewirer.history, weights(rewirer).tolist()))
    assert found[0] == found[1]
    assert found[0][0] == 9


def test_muon_for_matrices_and_adam_for_the_rest():
    model, optimizers, rewirer = sparse(muon_and_adam)
    train(model, optimizers, 20)
    assert len(rewirer.history) == 10
    assert rewirer.nnz == round(0.3 * 512)
    for layer in rewirer.layers:
        assert not (layer.parameter * ~layer.mask).any()
        assert not (optimizers[0].state[layer.parameter]["momentum_buffer"] * ~layer.mask).any()


def test_the_packed_store_refuses_muon_for_sparse_layers_only():
    with pytest.raises(ValueError, match=r"Muon needs whole weights, .* or another optimizer for 0, 2, 4"):
        sparse(muon_and_adam, store="packed")

    def dense_muon(model):
        return [torch.optim.Muon([model[4].weight], lr=0.02), torch.optim.AdamW([*model[:4].parameters()], lr=0.01)]

    model, optimizers, rewirer = sparse(dense_muon, store="packed", exclude="4")
    train(model, optimizers, 5)
    assert len(rewirer.history) == 2
    assert model[4].weight.all()
    model, optimizers, rewirer = sparse(dense_muon, store="packed", keep_masked="4")
    train(model, optimizers, 5)
    assert len(rewirer.history) == 2
    assert rewirer.layers[0].parameter.dim() == 1
    assert model[4].weight_mask.shape == model[4].weight.shape


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_state_moves_in_the_optimizer_that_owns_the_weight(store):
    model, optimizers, rewirer = sparse(store=store, method=rewire.set_(density=0.3, every=3, until=3, fraction=0.5))
    before = topology(rewirer)
    train(model, optimizers, 3)
    for layer, old, owner, key in zip(
        rewirer.layers, before, [optimizers[0], *optimizers[1:] * 2], ["exp_avg", *["momentum_buffer"] * 2], strict=True
    ):
        born = ~torch.isin(layer.active(), torch.tensor(old))
        state = layer.read_state(owner.state[layer.parameter][key])
        assert born.any()
        assert state[~born].any()
        assert not state[born].any()


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_resume(store):
    model, optimizers, rewirer = sparse(store=store)
    train(model, optimizers, 4)
    saved = copy.deepcopy([one.state_dict() for one in (model, *optimizers, rewirer)])
    train(model, optimizers, 4, begin=4)
    other, other_optimizers, other_rewirer = sparse(store=store)
    for part, state in zip((other, *other_optimizers, other_rewirer), saved, strict=True):
        part.load_state_dict(state)
    train(other, other_optimizers, 4, begin=4)
    assert torch.equal(weights(rewirer), weights(other_rewirer))
    assert rewirer.history == other_rewirer.history


def test_a_sharded_checkpoint(tmp_path):
    model, optimizers, rewirer = sparse()
    train(model, optimizers, 4)
    save(tmp_path, 4, model=model, optimizer=optimizers, rewirer=rewirer)
    train(model, optimizers, 3, begin=4)
    other, other_optimizers, other_rewirer = sparse()
    assert load_latest(tmp_path, model=other, optimizer=other_optimizers, rewirer=other_rewirer).step == 4
    assert other_rewirer.step == 4
    train(other, other_optimizers, 3, begin=4)
    assert torch.equal(weights(rewirer), weights(other_rewirer))


def test_remove_and_follow():
    model, optimizers, rewirer = sparse()
    train(model, optimizers, 3)
    others = halves(model, torch.optim.Adam)
    rewirer.follow(others)
    train(model, optimizers, 1, begin=3)
    assert rewirer.step == 3  # the old ones no longer count
    train(model, others, 2, begin=4)
    assert rewirer.step == 5
    one = torch.optim.SGD(model.parameters(), lr=0.1)
    rewirer.follow(one)
    train(model, [one], 1, begin=6)
    assert rewirer.step == 6
    rewirer.remove()
    train(model, [one], 1, begin=7)
    assert rewirer.step == 6
    assert int((model[0].weight != 0).sum()) > 150  # dense training again


def test_what_is_refused():
    model = mlp()
    parameters = list(model.parameters())
    one, other = torch.optim.SGD(parameters[:4], lr=0.1), torch.optim.SGD(parameters[2:], lr=0.1)
    with pytest.raises(ValueError, match="several optimizers hold the weight of 2: give each sparse weight to one"):
        rewire.sparsify(model, [one, other], METHOD)
    with pytest.raises(ValueError, match="none of the optimizers holds the weight of 4"):
        rewire.sparsify(model, [one, torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)], METHOD)
    for wrong in ([], [one, 3]):
        with pytest.raises(TypeError, match="optimizer must be a torch.optim.optimizer.Optimizer, not"):
            rewire.sparsify(model, wrong, METHOD)


def test_an_optimizer_that_steps_more_often_begins_the_step_anew():
    model, optimizers, rewirer = sparse(muon_and_adam)
    train(model, optimizers, 1)
    with pytest.warns(UserWarning, match="Muon steps again before AdamW stepped .*: rewirings count a step when each"):
        train(model, optimizers[:1], 3, begin=1)
    assert (rewirer.step, rewirer.history) == (1, [])
    assert all(not (layer.parameter * ~layer.mask).any() for layer in rewirer.layers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        train(model, optimizers, 3, begin=4)
    assert rewirer.step == 4
    assert [record.step for record in rewirer.history] == [2, 4]


def test_a_backward_pass_between_the_two_revives_nothing():
    model, optimizers, rewirer = sparse(method=rewire.rigl(density=0.3, every=1000, until=1000))
    for step in range(3):
        backward(model, step)
        optimizers[0].step()
        for layer in rewirer.layers:
            layer.parameter.grad = torch.ones_like(layer.parameter)
        optimizers[1].step()
        assert all(not (layer.parameter * ~layer.mask).any() for layer in rewirer.layers)


@pytest.mark.parametrize("fused", [False, True])
def test_a_grad_scaler_must_unscale_all_gradients_before_they_are_ranked(fused):
    """It would unscale them optimizer by optimizer, and the ranking compares all layers."""
    found = []
    for unscales in (True, False):
        model = mlp()
        optimizers = [torch.optim.Adam(model[:2].parameters(), lr=0.01, fused=fused)]
        optimizers.append(torch.optim.Adam(model[2:].parameters(), lr=0.01, fused=fused))
        rewirer = rewire.sparsify(model, optimizers, METHOD)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with (
            pytest.raises(RuntimeError, match=r"scaler.unscale_\(optimizer\)")
            if not (unscales or fused)
            else (warnings.catch_warnings())
        ):
            for step in range(5):
                x, y = batch(step)
                scaler.scale(F.cross_entropy(model(x), y)).backward()
                if unscales:
                    for one in optimizers:
                        scaler.unscale_(one)
                for one in optimizers:
                    scaler.step(one)
                scaler.update()
                for one in optimizers:
                    one.zero_grad()
            found.append(topology(rewirer))
            assert rewirer.step == 5
    assert len(found) == (2 if fused else 1)
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_one_of_them_skips_is_not_counted(fused, several):
    model = mlp()
    parts = (model[:2], model[2:]) if several else (model,)
    optimizers = [torch.optim.Adam(part.parameters(), lr=0.01, fused=fused) for part in parts]
    rewirer = rewire.sparsify(model, optimizers, METHOD)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Adam steps again")
        for step in range(6):
            x, y = batch(step)
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            if step in (2, 3):
                model[2].bias.grad[0] = float("inf")  # of the second; at the fourth step a rewiring would be due
            if step == 3:
                model[0].bias.grad[0] = float("inf")  # of both
            for one in optimizers:
                scaler.unscale_(one)
            for one in optimizers:
                scaler.step(one)
            scaler.update()
            for one in optimizers:
                one.zero_grad()
    assert rewirer.step == 4
    assert [record.step for record in rewirer.history] == [2, 4]


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_a_method_that_reads_no_gradient_takes_those_that_come_one_after_the_other(store):
    """As in a GAN under one rewirer: the second backward pass runs after the first optimizer's step."""
    model = nn.ModuleDict({"one": mlp(), "other": mlp()})
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model.values()]
    method = rewire.set_(density=0.4, every=2, until=100)
    rewirer = rewire.sparsify(model, optimizers, method, store=store)
    for _ in range(6):
        for part, optimizer in zip(model.values(), optimizers, strict=True):
            optimizer.zero_grad()
            part(torch.randn(8, 12)).square().mean().backward()
            optimizer.step()
    assert len(rewirer.history) == 3
    rewirer.check()


def stepped(store, method, inside):
    """Weights after eight steps of one optimizer for each parameter, inside of the backward pass or after it."""
    model = mlp(dtype=torch.float64)
    optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}
    rewirer = rewire.sparsify(model, list(optimizers.values()), method, store=store)

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    if inside:
        for parameter in optimizers:
            parameter.register_post_accumulate_grad_hook(step)
    for number in range(8):
        x, y = batch(number, dtype=torch.float64)
        F.cross_entropy(model(x), y).backward()
        for parameter in () if inside else optimizers:
            step(parameter)
    rewirer.check()
    return weights(rewirer), len(rewirer.history)


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_optimizers_may_step_inside_of_the_backward_pass(store):
    method = rewire.set_(density=0.4, every=3, until=100)
    (inside, rewired), (after, expected) = (stepped(store, method, where) for where in (True, False))
    assert rewired == expected == 2
    assert torch.equal(inside, after)
    with pytest.raises(RuntimeError, match="inside of the backward pass need a method that ranks no gradients"):
        stepped(store, rewire.rigl(density=0.4, every=3, until=100), True)
