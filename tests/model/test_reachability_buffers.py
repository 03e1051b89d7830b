"""Buffers: they carry no signal, and tracing a forward that changes them leaves the user's own alone."""

import pytest
import torch
from tests.model.test_reachability import wired
from torch import nn

import rewire
from rewire.model.reachability import cut_layers, unreachable_units


class Offset(nn.Module):
    """Adds a buffer, or multiplies by it, between two layers."""

    def __init__(self, join):
        super().__init__()
        self.first, self.last, self.join = nn.Linear(2, 2), nn.Linear(2, 1), join
        self.register_buffer("offset", torch.ones(2))

    def forward(self, x):
        return self.last(self.join(self.first(x), self.offset))


@pytest.mark.parametrize("join", [torch.add, torch.mul, lambda a, b: b + a])
def test_a_buffer_carries_no_signal(join):
    model = Offset(join)
    dead = wired(model, [[2], [0]])  # input 0 reaches unit 1, and the last layer reads unit 0
    assert cut_layers(model, dead) == ["last"]
    assert unreachable_units(model, dead) == {"first": (0, 1), "last": (1, 1)}
    assert cut_layers(model, wired(model, [[2], [1]])) == []


class Counting(nn.Module):
    """Counts its calls in a buffer, as batch norm does."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(2), persistent=False)

    def forward(self, x):
        self.calls += 1
        self.mean.mul_(0.9).add_(0.1)
        return self.layer(x) - self.mean


def test_tracing_does_not_change_the_buffers_of_the_model():
    model = Counting()
    assert cut_layers(model, wired(model, [[0]])) == []
    assert (model.calls.item(), model.mean.tolist()) == (0, [0, 0])


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_attaching_does_not_change_the_buffers_of_the_model(store):
    model = Counting()
    rewire.sparsify(model, torch.optim.SGD(model.parameters(), lr=0.1), rewire.static(density=0.5), store=store)
    assert (model.calls.item(), model.mean.tolist()) == (0, [0, 0])
    model(torch.zeros(1, 2))
    assert model.calls.item() == 1
