"""Numbers that parts return: an error names the part, the step and the value, and nothing has changed then."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from tests.networks import mlp, train

import rewire
from rewire.core import Signal
from rewire.core.topology import ScoredPositions
from rewire.parts import Lowest

METHOD = rewire.set_(density=0.5, every=2, until=10)
STORES = pytest.mark.parametrize("store", ["masked", "packed"])


@dataclass(frozen=True)
class From:
    """A density of 0.5 that has another value from a step on, although its ends do not say so."""

    later: object
    step: int = 4

    def __call__(self, step):
        return 0.5 if step < self.step else self.later

    def ends(self):
        return 0.5, 0.5


@dataclass(frozen=True)
class Fraction:
    """A schedule that returns a given value at step 4."""

    value: object

    def __call__(self, step):
        return self.value if step == 4 else None


def sparsified(method, store="masked"):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, rewire.sparsify(model, optimizer, method, store=store)


def refused_at_step_4(method, store, sentence):
    """Training raises at the fourth step, and then everything is as it was after the third."""
    model, optimizer, rewirer = sparsified(method, store)
    train(model, optimizer, 3)
    history = list(rewirer.history)
    before = [(layer.active().clone(), layer.parameter.detach().clone()) for layer in rewirer.layers]
    with pytest.raises(ValueError, match=sentence):
        train(model, optimizer, 1)
    for layer, (active, values) in zip(rewirer.layers, before, strict=True):
        assert torch.equal(layer.active(), active)
        assert torch.equal(layer.parameter.detach(), values)
    assert (rewirer.history, rewirer.step) == (history, 3)
    optimizer.zero_grad()
    rewirer.check()


WRONG = [2.0, -0.5, float("nan"), float("inf"), torch.tensor(0.2), "0.2", True, 0.1j, [0.1]]


@STORES
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_a_fraction_that_is_no_share_is_refused(value, store):
    sentence = r"^schedule=Fraction\(.*a number in \[0, 1\], or None, but returns .* at step 4"
    refused_at_step_4(replace(METHOD, schedule=Fraction(value)), store, sentence)


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.25)])
def test_any_number_from_0_to_1_is_a_fraction(value):
    model, optimizer, rewirer = sparsified(replace(METHOD, schedule=Fraction(value)))
    train(model, optimizer, 4)
    assert [type(record.fraction) for record in rewirer.history] == [float] * bool(value)


@STORES
@pytest.mark.parametrize("value", [*WRONG, 0.0, -0.1], ids=repr)
def test_a_density_that_is_no_share_is_refused(value, store):
    sentence = r"^density=From\(.*a number in \(0, 1\], but returns .* at step 4"
    refused_at_step_4(replace(METHOD, density=From(value)), store, sentence)


@STORES
def test_a_density_without_a_weight_for_every_layer_is_refused(store):
    refused_at_step_4(
        replace(METHOD, density=From(1e-9)), store, r"^density=From\(.* returns 1e-09 at step 4, which leaves 0 weights"
    )


def test_a_density_is_refused_under_a_constraint_too():
    method = replace(METHOD, density=From(1e-9), constraint=rewire.parts.NM(2, 4))
    refused_at_step_4(method, "masked", r"^density=From\(.* at step 4, which leaves 0 weights")


def test_a_first_density_that_is_no_share_is_refused():
    with pytest.raises(ValueError, match=r"^density=From\(.* returns 2.0 at step 0"):
        sparsified(replace(METHOD, density=From(2.0, step=0)))


@STORES
def test_a_birth_that_overflows_as_a_weight_is_refused(store):
    def huge(n, layer, ctx):
        return torch.full((n,), 1e300, dtype=torch.float64)

    model, optimizer, rewirer = sparsified(replace(METHOD, birth=huge), store)
    before = [layer.active().clone() for layer in rewirer.layers]
    with pytest.raises(ValueError, match=r"^birth=<function .*huge.* that are not finite as float32"):
        train(model, optimizer, 2)
    assert all(torch.equal(layer.active(), old) for layer, old in zip(rewirer.layers, before, strict=True))


@dataclass(frozen=True)
class Writes:
    """The usual drop, which writes into the signal that it reads."""

    signal: Signal | None
    exact = True
    signals = frozenset({Signal.WEIGHT, Signal.GRAD, Signal.SIGN})

    def most(self, layers, n):
        return Lowest().most(layers, n)

    def __call__(self, layers, n, ctx):
        tops = [ScoredPositions(-layer.read(Signal.WEIGHT).abs(), layer.active()) for layer in layers]
        for layer in layers:
            if self.signal is not None:
                layer.read(self.signal).mul_(-1000)
        return [top.positions for top in ctx.ranks.largest(tops, self.most(layers, n))]


@STORES
@pytest.mark.parametrize("signal", [Signal.WEIGHT, Signal.GRAD, Signal.SIGN])
def test_what_a_part_writes_into_a_signal_reaches_nobody(signal, store):
    trained = []
    for written in (None, signal):
        method = replace(rewire.rigl(density=0.5, every=2, until=10, fraction=0.5), drop=Writes(written))
        model, optimizer, rewirer = sparsified(method, store)
        train(model, optimizer, 6)
        trained.append([(layer.active().clone(), layer.parameter.detach().clone()) for layer in rewirer.layers])
    for (active, values), (expected, wanted) in zip(*trained, strict=True):
        assert torch.equal(active, expected)
        assert torch.equal(values, wanted)
