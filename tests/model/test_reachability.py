import pytest
import torch
from torch import nn

import rewire
from rewire.core.layer import Context
from rewire.lab import models
from rewire.model.reachability import cut_layers, unreachable_units
from rewire.model.select import find_layers


def wired(model, positions):
    found, _ = find_layers(model)
    return {one.module: (one.spec, torch.tensor(p)) for one, p in zip(found, positions, strict=True)}


def started(model, start, density):
    found, _ = find_layers(model)
    specs = [one.spec for one in found]
    placed = rewire.parts.STARTS[start](specs, round(density * sum(s.numel for s in specs)), Context())
    return {one.module: (one.spec, p) for one, p in zip(found, placed, strict=True)}


CHAIN = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))


def test_a_path_through_a_chain():
    # 0: input 0 -> unit 1; 2: unit 1 -> unit 0; 4: unit 0 -> output.
    assert cut_layers(CHAIN, wired(CHAIN, [[2], [1], [0]])) == []


def test_a_chain_that_does_not_meet():
    # 0: input 0 -> unit 1; 2: unit 0 -> unit 0. What leaves the first layer is not what the second reads.
    assert cut_layers(CHAIN, wired(CHAIN, [[2], [0], [0]])) == ["2"]


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 3, padding=1)
        self.branch = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2))
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(2 * 4, 3)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.branch(x))
        return self.head(torch.flatten(self.pool(x), 1))


def test_a_skip_connection_carries_the_signal_past_a_dead_branch():
    model = Residual()
    # Stem feeds channel 0 only; the branch reads channel 1 only and is dead; the head reads pixel 3 of channel 0.
    alive = wired(model, [[4], [9], [3]])
    assert cut_layers(model, alive) == []
    assert unreachable_units(model, alive) == {"stem": (0, 1), "branch.0": (1, 2), "head": (4, 2)}
    # The head reads channel 1 (positions 4-7), which nothing reaches.
    assert cut_layers(model, wired(model, [[4], [9], [5]])) == ["branch.0", "head"]


def test_concatenation_and_groups():
    class Cat(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1)
            self.mix = nn.Conv2d(2, 2, 1, groups=2)
            self.out = nn.Conv2d(2, 1, 1)

        def forward(self, x):
            return self.out(self.mix(torch.cat([self.a(x), self.b(x)], dim=1)))

    model = Cat()
    assert cut_layers(model, wired(model, [[0], [0], [1], [1]])) == []
    assert cut_layers(model, wired(model, [[0], [0], [1], [0]])) == ["out"]


def test_what_cannot_be_traced_is_not_known():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return self.layer(x) if x.sum() > 0 else x

    model = Branching()
    assert cut_layers(model, wired(model, [[0]])) is None
    odd = nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2)), nn.Linear(2, 2))
    assert cut_layers(odd, wired(odd, [[0], [0]])) is None


def test_tracing_leaves_the_model_and_the_global_generator_alone():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = nn.Linear(2, 2), 0

        def forward(self, x):
            self.calls += 1
            self.kept = x
            torch.rand(3)
            return self.layer(x)

    model, before = Counting(), torch.get_rng_state()
    assert cut_layers(model, wired(model, [[0]])) == []
    assert model.calls == 0
    assert not hasattr(model, "kept")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("density", [0.03, 0.01])
@pytest.mark.parametrize("start", ["connected-uniform", "connected-erk"])
@pytest.mark.parametrize("classes", [100, 200])
def test_a_connected_start_leaves_no_unit_of_mobilenet_unreachable(density, start, classes):
    model = models.build("mobilenet-v2", classes=classes, image=(3, 32, 32) if classes == 100 else (3, 64, 64))
    assert unreachable_units(model, started(model, start, density)) == {}


def test_a_scattered_uniform_start_of_half_a_mobilenet_is_dead_and_its_gradients_are_zero():
    torch.manual_seed(0)
    model = models.build("mobilenet-v2", classes=100, image=(3, 32, 32), width=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="no signal passes through this start: it ends in"):
        rewirer = rewire.sparsify(model, optimizer, rewire.ggr(density=0.03, every=1, until=9, start="uniform"))
    nn.functional.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.arange(4)).backward()
    assert not any(layer.parameter.grad.any() for layer in rewirer.layers)


@pytest.mark.parametrize("density", [0.03, 0.01])
def test_connected_and_drawn_for_its_fan_in_mobilenet_is_alive(density):
    torch.manual_seed(0)
    model = models.build("mobilenet-v2", classes=100, image=(3, 32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = rewire.ggr(density=density, every=1, until=9, start="connected-uniform")
    rewirer = rewire.sparsify(model, optimizer, method, init="fan_in")
    nn.functional.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.arange(4)).backward()
    assert all(layer.parameter.grad.any() for layer in rewirer.layers)
