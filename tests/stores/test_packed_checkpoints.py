"""Packed models saved, loaded, copied, compiled and made plain again."""

import copy

import pytest
import torch
from tests.networks import OPTIMIZERS, batch, cnn, train
from tests.stores.packing import IMAGE, sparse, topology, vgg, weights
from torch import nn

import rewire

pytestmark = pytest.mark.usefixtures("one_thread")


def load(target, source):
    for one, other in zip(target, source, strict=True):
        one.load_state_dict(copy.deepcopy(other.state_dict()))  # as from a file: nothing is shared


@pytest.mark.parametrize("stop", [4, 5, 12])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_resume_is_exact(stop, optimizer):
    whole = sparse(network="vgg", optimizer=optimizer, dtype=torch.float32)
    train(*whole[:2], 20, shape=IMAGE)
    first = sparse(network="vgg", optimizer=optimizer, dtype=torch.float32)
    train(*first[:2], stop, shape=IMAGE)
    second = sparse(network="vgg", optimizer=optimizer, dtype=torch.float32, seed=3)  # another topology until it loads
    load(second, first)
    train(*second[:2], 20 - stop, begin=stop, shape=IMAGE)
    assert topology(second[2]) == topology(whole[2])
    assert torch.equal(weights(second[2]), weights(whole[2]))
    assert second[2].history == whole[2].history


@pytest.mark.parametrize(("source", "target"), [("masked", "packed"), ("packed", "masked")])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_each_store_reads_the_others_checkpoints(source, target, optimizer):
    whole = sparse(source, "vgg", optimizer=optimizer)
    train(*whole[:2], 7, shape=IMAGE, dtype=torch.float64)
    other = sparse(target, "vgg", optimizer=optimizer, seed=3)
    load(other, whole)
    for run in (whole, other):
        train(*run[:2], 10, begin=7, shape=IMAGE, dtype=torch.float64)
    assert topology(other[2]) == topology(whole[2])
    torch.testing.assert_close(weights(other[2]), weights(whole[2]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_to_dense_is_the_same_function(store):
    model, optimizer, rewirer = sparse(store, "vgg")
    train(model, optimizer, 6, shape=IMAGE, dtype=torch.float64)
    plain = rewire.to_dense(model)
    x = batch(0, IMAGE, dtype=torch.float64)[0]
    torch.testing.assert_close(plain.eval()(x), model.eval()(x))
    assert plain.state_dict().keys() == vgg().state_dict().keys()
    assert [type(module) for module in plain.modules()] == [type(module) for module in vgg().modules()]
    assert sum(int((m.weight != 0).sum()) for m in plain if isinstance(m, (nn.Linear, nn.Conv2d))) == rewirer.nnz


def test_remove_leaves_the_plain_model_to_its_optimizer():
    model, optimizer, rewirer = sparse(network="vgg", optimizer="adam")
    train(model, optimizer, 6, shape=IMAGE, dtype=torch.float64)
    x = batch(0, IMAGE, dtype=torch.float64)[0]
    expected = model(x)
    rewirer.remove()
    torch.testing.assert_close(model(x), expected)
    assert [type(module) for module in model.modules()] == [type(module) for module in vgg().modules()]
    train(model, optimizer, 2, shape=IMAGE, dtype=torch.float64)
    assert optimizer.state[model[0].weight]["exp_avg"].shape == model[0].weight.shape == (8, 3, 3, 3)


def test_a_packed_model_can_be_copied_and_compiled():
    model, optimizer, _rewirer = sparse(network="mlp", dtype=torch.float32)
    train(model, optimizer, 3)
    x = batch(0)[0]
    torch.testing.assert_close(copy.deepcopy(model)(x), model(x))
    torch.testing.assert_close(torch.compile(model, backend="aot_eager")(x), model(x))
    exported = torch.export.export(model.eval(), (x,))
    assert sum("sparse_conv2d" in str(node.target) for node in exported.graph.nodes) == 3
    torch.testing.assert_close(exported.module()(x), model(x))


def test_cnn_with_groups_in_every_precision():
    for dtype in (torch.float32, torch.float64):
        model = cnn().to(dtype)
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        rewirer = rewire.sparsify(model, optimizer, rewire.dsr(density=0.3, every=2, until=100), store="packed")
        train(model, optimizer, 8, shape=(3, 6, 6), dtype=dtype)
        assert rewirer.history[-1].step == 8
