"""What a rewirer keeps in memory."""

import gc
import weakref

import pytest
import torch
from tests.networks import mlp, train

import rewire


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_a_model_that_nobody_uses_any_more_is_freed(store):
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    rewirer = rewire.sparsify(model, optimizer, rewire.rigl(density=0.5, every=2, until=10), store=store)
    train(model, optimizer, 3)
    references = [weakref.ref(thing) for thing in (model, *model, optimizer, rewirer)]
    del model, optimizer, rewirer
    gc.collect()
    assert not any(reference() is not None for reference in references)


def test_gradients_are_cleared_as_long_as_the_model_lives():
    model = mlp()
    rewire.sparsify(model, torch.optim.Adam(model.parameters()), rewire.static(density=0.5))
    gc.collect()
    model(torch.randn(4, 12)).square().sum().backward()
    assert model[0].weight.grad.any()
    assert not model[0].weight.grad[~model[0].weight_mask].any()
