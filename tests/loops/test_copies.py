"""Copies and pickles of a sparse model: they keep their topology, whatever trains them, and the model keeps its own."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from tests.loops.loops import assert_zero_off_mask, batch, both_stores, conv_net, dense, masks, sparse, train
from tests.networks import OPTIMIZERS
from torch import nn

import rewire

pytestmark = pytest.mark.usefixtures("one_thread")


def deep_copy(model, _folder):
    return copy.deepcopy(model)


def pickled(model, _folder):
    return pickle.loads(pickle.dumps(model))


def saved(model, folder):
    torch.save(model, folder / "model.pt")
    return torch.load(folder / "model.pt", weights_only=False)


def copied_twice(model, _folder):
    return copy.deepcopy(pickle.loads(pickle.dumps(copy.deepcopy(model))))


ways = pytest.mark.parametrize("way", [deep_copy, pickled, saved, copied_twice])


@both_stores
@ways
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_a_copy_with_an_optimizer_of_its_own_keeps_its_topology(store, way, optimizer, tmp_path):
    model, ours, _ = sparse(store, "ggr")
    train(model, ours, 4)
    copied = way(model, tmp_path)
    topology, before = [mask.clone() for mask in masks(copied)], dense(copied)
    own = OPTIMIZERS[optimizer](copied.parameters())
    norms = []
    for step in range(6):
        x, y = batch(step)
        F.cross_entropy(copied(x), y).backward()
        assert_no_gradient_off_mask(copied)
        norms.append(torch.nn.utils.clip_grad_norm_(copied.parameters(), 0.1))
        own.step()
        own.zero_grad()
    assert_zero_off_mask(copied)
    assert all(torch.equal(a, b) for a, b in zip(masks(copied), topology, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(dense(copied), before, strict=True))
    assert all(norms)


def assert_no_gradient_off_mask(model):
    for module in model.modules():
        mask = module._buffers.get("weight_mask")
        if mask is not None:
            assert not module.weight.grad[~mask].any()


@ways
@pytest.mark.parametrize("write", ["in place", "through data"])
def test_what_is_written_into_a_masked_copy_off_its_mask_does_not_count(way, write, tmp_path):
    model, _, _ = sparse("masked")
    copied, x = way(model, tmp_path), batch(0)[0]
    target = copied[0].weight.data if write == "through data" else copied[0].weight
    with torch.no_grad():
        target.add_(1.0)
    expected = F.linear(x, torch.where(copied[0].weight_mask, copied[0].weight, 0.0), copied[0].bias)
    assert not copied.state_dict()["0.weight"][~copied[0].weight_mask].any()
    with torch.no_grad():
        target.add_(~copied[0].weight_mask * 1.0)
    torch.testing.assert_close(copied[0](x), expected)
    assert not rewire.to_dense(copied)[0].weight[~copied[0].weight_mask].any()


@both_stores
def test_both_the_copy_and_the_model_go_on(store):
    """The model is rewired, the copy is not, and neither notices the other."""
    model, optimizer, rewirer = sparse(store, "ggr")
    alone, alone_optimizer, _ = sparse(store, "ggr")
    copied = copy.deepcopy(model)
    topology = [mask.clone() for mask in masks(copied)]
    own = torch.optim.SGD(copied.parameters(), lr=0.1)
    for step in range(8):
        train(model, optimizer, 1, begin=step)
        train(copied, own, 1, begin=step)
        train(alone, alone_optimizer, 1, begin=step)
        rewirer.check()
    assert all(torch.equal(a, b) for a, b in zip(masks(copied), topology, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(dense(model), dense(alone), strict=True))
    assert len(rewirer.history) == 2


@both_stores
def test_a_snapshot_stays_what_it_was(store):
    model, optimizer, _ = sparse(store, "rigl")
    train(model, optimizer, 4)
    best, x = copy.deepcopy(model), batch(0)[0]
    expected = best(x).clone()
    train(model, optimizer, 8, begin=4)
    assert torch.equal(best(x), expected)
    assert torch.equal(best.float()(x.float()), best(x.float()))  # another precision is no mixture
    model.load_state_dict(copy.deepcopy(best).double().state_dict())
    train(model, optimizer, 2, begin=12)


@both_stores
def test_copies_of_a_copy_and_of_a_convolutional_network(store):
    model, optimizer, _ = sparse(store, "ggr", conv_net())
    train(model, optimizer, 4, shape=(3, 6, 6))
    x = batch(0, (3, 6, 6))[0]
    for one in (copy.deepcopy(copy.deepcopy(model)), pickle.loads(pickle.dumps(copy.deepcopy(model)))):
        torch.testing.assert_close(one.eval()(x), model.eval()(x))
    model.train()


@both_stores
def test_a_packed_copy_that_trains_is_as_fast_as_its_model(store):
    """A hook on a layer keeps it from being fused: a packed copy has none once it trains on its own."""
    model, _, _ = sparse(store)
    copied = copy.deepcopy(model)
    assert copied[0]._forward_pre_hooks
    train(copied, torch.optim.SGD(copied.parameters(), lr=0.1), 2)
    assert bool(copied[0]._forward_pre_hooks) == (store == "masked")
    assert not model[0]._forward_pre_hooks
    assert not rewire.to_dense(model)[0]._forward_pre_hooks
    assert store == "masked" or not pickle.loads(pickle.dumps(model))[0]._forward_pre_hooks


@both_stores
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of torch, where it breaks a graph
def test_a_copy_can_be_compiled(store):
    model, optimizer, _ = sparse(store, "rigl")
    copied = copy.deepcopy(model)
    compiled = torch.compile(copied, backend="aot_eager")
    x = batch(0)[0]
    torch.testing.assert_close(compiled(x), model(x))
    train(model, optimizer, 4)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(2.0)
    with pytest.raises(RuntimeError, match="rewirer.register_average"):
        compiled(x)
    torch.compiler.reset()  # or later tests compile with the broken graphs of this one


def test_a_copy_can_be_exported():
    model, _, _ = sparse("masked")
    copied, x = copy.deepcopy(model).eval(), batch(0)[0]
    torch.testing.assert_close(torch.export.export(copied, (x,)).module()(x), model(x))


@both_stores
def test_what_a_rewiring_will_rank_is_not_copied(store):
    model, optimizer, _ = sparse(store, "rigl")
    train(model, optimizer, 2)
    F.cross_entropy(model(batch(2)[0]), batch(2)[1]).backward()  # the next step rewires
    for one in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert getattr(one[0], "backward_record", None) is None
    optimizer.step()


class Reader(nn.Module):
    """Reads the weights of layers that it never calls, one of them under two names."""

    def __init__(self):
        super().__init__()
        self.query, self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 4)
        self.tied = nn.Linear(12, 12)
        self.tied.weight = self.first.weight

    def forward(self, x):
        return F.linear(self.tied(F.linear(x, self.query.weight)), self.second.weight)


@ways
@pytest.mark.parametrize("network", [Reader, lambda: nn.TransformerEncoderLayer(12, 2, 16, 0.0, batch_first=True)])
def test_a_copy_keeps_the_topology_of_layers_that_are_read_and_never_called(way, network, tmp_path):
    model, ours, _ = sparse("masked", "rigl", model=network().double())
    x = torch.randn(4, 5, 12, dtype=torch.float64)
    model(x).square().mean().backward()
    ours.step()
    ours.zero_grad()
    copied = way(model, tmp_path)
    own = OPTIMIZERS["momentum"](copied.parameters())
    for _ in range(3):
        copied(x).square().mean().backward()
        own.step()
        own.zero_grad()
    weights = [module.weight for module in copied.modules() if "weight_mask" in module._buffers]
    assert len(weights) >= 3
    for weight, mask in zip(weights, (m for m in masks(copied) if m is not None), strict=True):
        assert weight[mask].all()
        assert not weight[~mask].any()


@both_stores
def test_torch_func_calls_copies_with_the_tensors_of_the_caller(store):
    """As in torch's ensembles: one copy without values, and the stacked parameters of several models."""
    model, ours, _ = sparse(store, "rigl")
    train(model, ours, 4)
    copied = copy.deepcopy(model)
    given = {name: torch.ones_like(parameter) for name, parameter in model.named_parameters()}
    x = batch(0)[0]
    torch.func.functional_call(copied, given, (x,))
    assert all(tensor.eq(1).all() for tensor in given.values())
    if store == "masked":  # packed layers refuse vmap
        stacked = {name: torch.stack([tensor, 2 * tensor]) for name, tensor in given.items()}
        found = torch.vmap(lambda one: torch.func.functional_call(copied, one, (x,)))(stacked)
        expected = [torch.func.functional_call(copied, {n: t[i] for n, t in stacked.items()}, (x,)) for i in (0, 1)]
        torch.testing.assert_close(found, torch.stack(expected))
