"""``mean_magnitudes`` on layers of both stores, and split over ranks: it must not depend on who holds what."""

import pytest
import torch
from torch import nn

import rewire
from rewire.core.across_layers import mean_magnitudes
from rewire.core.layer import Signal
from rewire.core.ranks import ALONE


def trained(method, store="masked", dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 6)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewirer = rewire.sparsify(model, optimizer, method, store=store)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 12, dtype=dtype)).square().mean().backward()
        optimizer.step()
    return rewirer


def plain_mean(values):
    """In float64, as a textbook has it."""
    return sum(abs(value) for value in values.double().tolist()) / len(values)


@pytest.mark.parametrize("store", ["masked", "packed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("signal", [Signal.WEIGHT, Signal.GRAD])
def test_means_of_what_the_stores_hold(store, dtype, signal):
    rewirer = trained(rewire.rigl(density=0.3, every=100, until=100), store, dtype)
    expected = [plain_mean(layer.read(signal)) for layer in rewirer.layers]
    assert mean_magnitudes(rewirer.layers, signal, ALONE) == pytest.approx(expected, rel=1e-12)
    assert min(expected) > 0


def test_means_of_the_momentum_that_snfs_divides_by():
    rewirer = trained(rewire.snfs(density=0.3, every=100, until=100))
    masks = [layer.mask for layer in rewirer.layers]
    expected = [plain_mean(layer.average[mask]) for layer, mask in zip(rewirer.layers, masks, strict=True)]
    assert mean_magnitudes(rewirer.layers, Signal.MOMENTUM, ALONE) == pytest.approx(expected, rel=1e-12)


class Shard:
    """The part of a layer that one of several ranks holds."""

    def __init__(self, layer, part):
        self.nnz, self._values = layer.nnz, layer.read(Signal.WEIGHT)[part]

    def read(self, signal):
        return self._values


class Together:
    """Ranks that take turns in one process: what they gather in a first round is known to all in the next."""

    def __init__(self, known):
        self.known, self.sent = known, []

    def gather(self, numbers):
        call = len(self.sent)
        self.sent.append(list(numbers))
        return self.known[call] if call < len(self.known) else [list(numbers)]


def means_over(shards):
    """The result of each rank. Each call of ``gather`` is answered with what all ranks sent in that call."""
    known = []
    while True:
        sent, results = [], []
        for layers in shards:
            ranks = Together(known)
            results.append(mean_magnitudes(layers, Signal.WEIGHT, ranks))
            sent.append(ranks.sent)
        calls = [list(column) for column in zip(*sent, strict=True)]
        if calls == known:
            return results
        known = calls


@pytest.mark.parametrize("cut", [0, 1, 17, 30])
def test_means_do_not_depend_on_how_a_layer_is_sharded(cut):
    rewirer = trained(rewire.rigl(density=0.3, every=100, until=100))
    with torch.no_grad():
        rewirer.layers[0].parameter.mul_(1e-30)  # far from one, and the shards have exponents of their own
        rewirer.layers[0].parameter[0] *= 1e6
    alone = mean_magnitudes(rewirer.layers, Signal.WEIGHT, ALONE)
    parts = (slice(0, cut), slice(cut, None))
    results = means_over([[Shard(layer, part) for layer in rewirer.layers] for part in parts])
    assert results == [alone, alone]  # bit for bit


def test_the_mean_of_nothing_is_zero():
    class Empty:
        nnz = 0

        def read(self, signal):
            return torch.empty(0)

    assert mean_magnitudes([Empty()], Signal.WEIGHT, ALONE) == [0.0]
