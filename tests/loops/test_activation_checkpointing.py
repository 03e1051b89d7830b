"""Activation checkpointing, also of a layer that is used twice: both stores rewire alike."""

import pytest
import torch
import torch.nn.functional as F
from tests.loops.loops import STORES, batch, masks, sparse, train
from torch import nn
from torch.utils.checkpoint import checkpoint

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad"),  # of torch, while a start is traced
]


class Recurrent(nn.Module):
    """The layer in the middle is used twice."""

    def __init__(self, reentrant, at_once=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.reentrant, self.at_once = reentrant, at_once

    def block(self, x):
        return F.relu(self.middle(x))

    def forward(self, x):
        x = F.relu(self.first(x))
        blocks = [lambda x: self.block(self.block(x))] if self.at_once else [self.block, self.block]
        for block in blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.last(x)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_checkpointing_changes_no_topology_and_no_weight(at_once, accumulate):
    found = {}
    for store in STORES:
        for reentrant in (None, False, True):
            model, optimizer, rewirer = sparse(store, "ggr", Recurrent(reentrant, at_once).double())
            for step in range(10):
                for micro in range(accumulate):
                    x, y = batch(step * accumulate + micro)
                    F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            assert len(rewirer.history) == 3
            found[store, reentrant] = (rewirer.history, masks(model), model.last.bias.detach())
    history, topology, bias = found["masked", None]
    for other_history, other_topology, other_bias in found.values():
        assert other_history == history
        assert all(torch.equal(a, b) for a, b in zip(topology, other_topology, strict=True))
        torch.testing.assert_close(other_bias, bias)


@pytest.mark.parametrize("clear", ["nothing", "zeros", "grad"])
def test_only_the_gradients_that_the_step_uses_are_ranked(clear):
    """Some were cleared without a step, or never accumulated."""
    found = []
    for store in STORES:
        model, optimizer, _ = sparse(store, "rigl")
        train(model, optimizer, 2)
        x, y = batch(50)
        if clear == "grad":
            x.requires_grad_()
            torch.autograd.grad(1000 * F.cross_entropy(model(x), y), x)
        else:
            (1000 * F.cross_entropy(model(x), y)).backward()
            optimizer.zero_grad(set_to_none=clear == "nothing")
        train(model, optimizer, 1, begin=2)
        found.append(masks(model))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
