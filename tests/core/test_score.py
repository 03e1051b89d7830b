"""Scores wherever a signal is taken: by hand, in both stores, before and after the optimizer's step."""

import functools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.test_method import cases, make, shown
from tests.fakes import ListLayer, _
from tests.networks import cnn, mlp, train

import rewire
from rewire.core import Signal
from rewire.core.capture import capture
from rewire.core.layer import Context
from rewire.core.score import evaluate
from rewire.parts import (
    Constant,
    GlobalTop,
    GradientAverage,
    Lowest,
    Mix,
    Periodic,
    Saliency,
    Score,
    Strongest,
    WeightPlusGradient,
)


def cube(weight, grad):
    return weight + grad**3


CUBE = Score("cube", (Signal.WEIGHT, Signal.GRAD), cube)


def test_saliency_drops_the_weights_that_matter_least_to_the_loss():
    layer = ListLayer([0.5, _, 0.1, 0.3, -2.0], grad=[0.1, 9, 3, -1, 0.01])
    # |w g|: 0.05, 0.3, 0.3, 0.02 at the positions 0, 2, 3, 4. By magnitude 2 and 3 would go.
    assert [one.tolist() for one in Lowest(Saliency())([layer], 2, Context())] == [[0, 4]]


def test_weight_plus_gradient_by_hand():
    layer = ListLayer([0.5, _, 0.1, 0.3, -0.2], grad=[0, 9, -4, 0, 0.5])
    # |w| + |g| / 10: 0.5, 0.5, 0.3, 0.25 at the positions 0, 2, 3, 4.
    assert [one.tolist() for one in Lowest(WeightPlusGradient(0.1))([layer], 2, Context())] == [[3, 4]]
    with pytest.raises(
        ValueError, match="balance is the factor of the gradient and must be at least 0 and finite, not -1"
    ):
        WeightPlusGradient(-1)


def test_growth_and_allocation_by_a_score_of_ones_own():
    backwards = Score("small gradients first", (Signal.GRAD,), lambda grad: torch.where(grad == 0, 0.0, 1 / grad))
    layers = [
        ListLayer([0.5, 0.1, _, _, _, _], grad=[9, 9, 1, 2, 4, 0]),
        ListLayer([0.9, 0.2, _, _, _, _], grad=[9, 9, 8, 5, 3, 16]),
    ]
    method = replace(
        make("ggr", 1 / 3, schedule=Periodic(1, None, Constant(0.5))),
        allocate=GlobalTop(backwards),
        grow=Strongest(backwards),
    )
    # The smallest of each go. 1 / |g| of the candidates: 1 1/2 1/4 0 | 1/8 1/5 1/3 1/16, and 1/9 of both dropped. Both
    # new weights go to the first layer, to 1 and 1/2.
    assert shown(rewire.core.plan_rewiring(method, layers, Context(step=1))) == [([1], [2, 3]), ([1], [])]


@settings(max_examples=30)
@given(cases(), st.sampled_from([0.1, 0.5, 1.0]), st.booleans())
def test_what_is_captured_before_the_step_decides_alike(case, fraction, network):
    layers, density = case
    allocate = GlobalTop(CUBE) if network else make("set", density).allocate
    parts = {"drop": Lowest(Saliency(), "network" if network else "layer"), "allocate": allocate, "grow": Mix(CUBE)}
    method = make("rigl", density, schedule=Periodic(1, None, Constant(fraction)), **parts)
    now = rewire.core.plan_rewiring(method, layers, Context(step=1))
    captured = capture(method, layers, Context(step=1))
    for layer in layers:
        layer._signals[Signal.GRAD].zero_()  # as after the optimizer's step
    assert shown(rewire.core.plan_rewiring(method, captured, Context(step=1))) == shown(now)


@pytest.mark.parametrize("network", [cnn, mlp])
def test_both_stores_make_the_same_edits(network):
    def edits(store):
        model = network().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        method = replace(
            rewire.ggr(density=0.3, every=3, until=12, fraction=0.3, growth=Mix(CUBE)),
            drop=Lowest(WeightPlusGradient(0.5)),
            allocate=GlobalTop(CUBE),
        )
        rewirer = rewire.sparsify(model, optimizer, method, store=store)
        train(model, optimizer, 10, shape=(3, 6, 6) if network is cnn else (12,), dtype=torch.float64)
        assert len(rewirer.history) == 3
        return [layer.active().tolist() for layer in rewirer.layers]

    assert edits("masked") == edits("packed")


def test_an_average_with_a_chosen_decay():
    model = mlp().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = replace(rewire.rigl(density=0.5, every=5, until=10), grow=Strongest(GradientAverage(0.75)))
    rewirer = rewire.sparsify(model, optimizer, method)
    (layer, *_others), seen = rewirer.layers, []
    layer.parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    train(model, optimizer, 3, dtype=torch.float64)
    expected = 0.25 * (seen[2] + 0.75 * seen[1] + 0.75**2 * seen[0])
    assert torch.allclose(layer.average.double(), expected, rtol=1e-5, atol=1e-8)
    with pytest.raises(ValueError, match=r"ask for different decays: 0.75, 0.9"):
        replace(method, allocate=GlobalTop(Signal.MOMENTUM))
    assert replace(method, allocate=GlobalTop(GradientAverage(0.75))).momentum_decay == 0.75
    with pytest.raises(ValueError, match="the packed store cannot supply"):
        rewire.sparsify(mlp(), optimizer, method, store="packed")


def test_a_score_is_known_by_its_name_its_signals_and_the_name_of_its_function():
    assert repr(CUBE) == "Score('cube', (Signal.WEIGHT, Signal.GRAD), 'cube')"
    assert Score("cube", [Signal.WEIGHT, Signal.GRAD], cube) == CUBE
    assert hash(CUBE) == hash(Score("cube", (Signal.WEIGHT, Signal.GRAD), cube))
    assert Score("other", (Signal.WEIGHT, Signal.GRAD), cube) != CUBE
    assert Score("cube", (Signal.GRAD, Signal.WEIGHT), cube) != CUBE
    assert Score("cube", (Signal.WEIGHT, Signal.GRAD), lambda w, g: w) != CUBE


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped():
    def begin():
        model = mlp().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        method = replace(rewire.rigl(density=0.4, every=3, until=30, fraction=0.3), grow=Strongest(CUBE))
        return model, optimizer, rewire.sparsify(model, optimizer, method)

    whole, halves, resumed = begin(), begin(), begin()
    train(*whole[:2], 12, dtype=torch.float64)
    train(*halves[:2], 7, dtype=torch.float64)
    for old, new in zip(halves, resumed, strict=True):
        new.load_state_dict(old.state_dict())
    train(*resumed[:2], 5, begin=7, dtype=torch.float64)
    assert all(torch.equal(a, b) for a, b in zip(whole[0].parameters(), resumed[0].parameters(), strict=True))
    other = replace(resumed[2].method, grow=Strongest(Score("square", (Signal.GRAD,), lambda g: g**2)))
    model = mlp().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="the checkpoint's method differs"):
        rewire.sparsify(model, optimizer, other).load_state_dict(halves[2].state_dict())


def test_scores_that_cannot_work():
    with pytest.raises(TypeError, match="has no name that a checkpoint could store"):
        Score("partial", (Signal.GRAD,), functools.partial(torch.pow, exponent=2))
    with pytest.raises(TypeError, match="expected a function, not 3"):
        Score("number", (Signal.GRAD,), 3)
    with pytest.raises(TypeError, match=r"reads one or more members of Signal, not \('grad',\)"):
        Score("string", ("grad",), abs)
    with pytest.raises(TypeError, match="reads one or more members of Signal"):
        Score("nothing", (), abs)
    with pytest.raises(ValueError, match="reads both the gradient and its average"):
        Score("both", (Signal.GRAD, Signal.MOMENTUM), torch.add)
    with pytest.raises(ValueError, match=r"decay=0.5 has no effect"):
        Score("decay", (Signal.GRAD,), abs, decay=0.5)
    with pytest.raises(ValueError, match=r"decay must lie in \[0, 1\), not 1"):
        GradientAverage(1)


def test_a_score_must_be_a_finite_number_for_each_weight():
    values = [torch.tensor([0.0, 2.0])]
    with pytest.raises(ValueError, match=r"of shape \(2,\), not a tensor of shape \(\)"):
        evaluate(Score("sum", (Signal.GRAD,), lambda g: g.sum()), values)
    with pytest.raises(ValueError, match=r"of shape \(2,\), not 1"):
        evaluate(Score("one", (Signal.GRAD,), lambda g: 1), values)
    with pytest.raises(ValueError, match="is not finite for some weights"):
        evaluate(Score("inverse", (Signal.GRAD,), lambda g: 1 / g), values)
