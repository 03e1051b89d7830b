"""Pruning and parametrizations of torch that are put on a sparse layer."""

import copy

import pytest
import torch
from tests.loops.loops import batch, both_stores, sparse, train
from torch.nn.utils import parametrizations, parametrize, prune


def pruned(module):
    prune.l1_unstructured(module, "weight", 0.5)


def normed(module):
    parametrizations.weight_norm(module)


def spectral(module):
    parametrizations.spectral_norm(module)


@both_stores
@pytest.mark.parametrize(("put_on", "found"), [(pruned, "prune"), (normed, "a param"), (spectral, "a param")])
def test_what_is_put_on_after_sparsify_is_refused_by_name(store, put_on, found):
    model, optimizer, rewirer = sparse(store)
    train(model, optimizer, 1)
    message = f"{found}.* was put on the weight of 2 after sparsify.* before sparsify"
    if store == "packed":
        with pytest.raises(RuntimeError, match=message):
            put_on(model[2])
        return
    copied = copy.deepcopy(model)
    put_on(model[2])
    with pytest.raises(RuntimeError, match=message):
        train(model, optimizer, 1)
    with pytest.raises(RuntimeError, match=message):
        rewirer.remove()
    put_on(copied[2])
    with torch.no_grad(), pytest.raises(RuntimeError, match=message):
        copied(batch(0)[0])


def test_a_refused_removal_changes_nothing():
    model, optimizer, rewirer = sparse("masked")
    train(model, optimizer, 1)
    spectral(model[2])
    with pytest.raises(RuntimeError, match="a parametrization"):
        rewirer.remove()
    parametrize.remove_parametrizations(model[2], "weight")
    train(model, optimizer, 1)
    rewirer.check()
    assert rewirer.step == 2
    rewirer.remove()
    assert not any("mask" in name for name in model.state_dict())
