import random

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import ListLayer, _

from rewire.core.across_layers import largest_inactive
from rewire.core.layer import Context, Signal
from rewire.core.views import Captured, Edited


def positions(tops):
    return [one.positions.tolist() for one in tops]


def test_edited_shows_the_layer_after_the_drop_with_the_dropped_as_candidates():
    layer = ListLayer([5.0, _, 1.0, 3.0, _], grad=[9, 2, 8, 9, 4])
    after = Edited(layer, torch.tensor([2]), index=0)
    assert after.active().tolist() == [0, 3]
    assert after.read(Signal.WEIGHT).tolist() == [5.0, 3.0]
    assert after.room == 3
    assert after.top_inactive(Signal.GRAD, 2).positions.tolist() == [2, 4]  # 8 and 4, the dropped one first


def test_without_regrowth_the_dropped_are_no_candidates():
    layer = ListLayer([5.0, _, 1.0, 3.0, _], grad=[9, 2, 8, 9, 4])
    after = Edited(layer, torch.tensor([2]), index=0, regrow=False)
    assert after.room == 2
    assert after.occupied().tolist() == [0, 2, 3]
    assert after.top_inactive(Signal.GRAD, 2).positions.tolist() == [1, 4]


def test_captured_answers_as_before_the_step():
    layer = ListLayer([1.0, _, -2.0, _], grad=[1, 5, 2, 7])
    view = Captured(layer, frozenset({Signal.GRAD, Signal.SIGN, Signal.WEIGHT}))
    view.store_top(Signal.GRAD, layer.top_inactive(Signal.GRAD, 2), limit=2)
    layer._signals[Signal.GRAD].zero_()
    layer._signals[Signal.WEIGHT][2] = 3.0
    assert view.top_inactive(Signal.GRAD, 1).positions.tolist() == [3]
    assert view.top_inactive(Signal.GRAD, 2, floor=6.0).positions.tolist() == [3]
    assert view.read(Signal.GRAD).tolist() == [1, 2]
    assert view.read(Signal.WEIGHT).tolist() == [1.0, 3.0]  # weights are those after the step


def test_strongest_of_the_network_by_hand():
    layers = [
        ListLayer([1.0, _, _, _], grad=[99, 5, -7, 0]),
        ListLayer([_, _, 1.0], grad=[6, 5, 99]),
        ListLayer([_, _], grad=[0, 5]),
    ]
    # |g| of the candidates: 5 7 0 | 6 5 | 0 5. The four largest: 7, 6 and two of the three fives, earlier layers first.
    assert positions(largest_inactive(layers, Signal.GRAD, 4)) == [[1, 2], [0, 1], []]
    assert positions(largest_inactive(layers, Signal.GRAD, 9)) == [[1, 2], [0, 1], [1]]  # zeros never count


def test_a_frozen_layer_has_no_candidates():
    layers = [ListLayer([1.0, _], grad=[0, 9], frozen=True), ListLayer([1.0, _], grad=[0, 1])]
    assert positions(largest_inactive(layers, Signal.GRAD, 1)) == [[], [1]]


@st.composite
def networks(draw):
    return [
        ListLayer(
            [draw(st.sampled_from([_, 1.0])) for _i in range(size)],
            grad=[draw(st.integers(-6, 6)) for _i in range(size)],
        )
        for size in draw(st.lists(st.integers(1, 15), min_size=1, max_size=6))
    ]


@given(networks(), st.integers(1, 25))
def test_streaming_equals_a_brute_force_sort(layers, k):
    candidates = [
        (-abs(layer._signals[Signal.GRAD][p].item()), i, p)
        for i, layer in enumerate(layers)
        for p in range(layer.shape.numel())
        if p not in layer.active().tolist() and layer._signals[Signal.GRAD][p] != 0
    ]
    best = sorted(candidates)[:k]
    assert positions(largest_inactive(layers, Signal.GRAD, k)) == [
        sorted(p for _v, owner, p in best if owner == i) for i in range(len(layers))
    ]


@given(st.lists(st.integers(1, 15), min_size=2, max_size=6), st.integers(1, 30), st.randoms())
def test_the_order_of_the_layers_does_not_matter(sizes, k, rng):
    distinct = random.Random(7).sample(range(1, 10_000), sum(sizes))  # no ties, which the order would decide
    layers, begin = [], 0
    for size in sizes:
        layers.append(ListLayer([_] * size, grad=distinct[begin : begin + size]))
        begin += size
    order = rng.sample(range(len(layers)), len(layers))
    here = positions(largest_inactive(layers, Signal.GRAD, k))
    assert positions(largest_inactive([layers[i] for i in order], Signal.GRAD, k)) == [here[i] for i in order]


@given(networks(), st.integers(1, 25), st.data())
def test_scaled_streaming_equals_a_brute_force_sort(layers, k, data):
    scales = [data.draw(st.sampled_from([0.1, 0.3, 1.0, 7.0])) for _l in layers]
    best = sorted(
        (-(torch.tensor(abs(layer._signals[Signal.GRAD][p].item())) / scales[i]).item(), i, p)
        for i, layer in enumerate(layers)
        for p in range(layer.shape.numel())
        if p not in layer.active().tolist() and layer._signals[Signal.GRAD][p] != 0
    )[:k]
    found = positions(largest_inactive(layers, Signal.GRAD, k, scales))
    assert sum(map(len, found)) == len(best)
    values = sorted(
        abs(layers[i]._signals[Signal.GRAD][p].item()) / scales[i] for i, ps in enumerate(found) for p in ps
    )
    assert torch.allclose(torch.tensor(values), torch.tensor(sorted(-v for v, _i, _p in best)))


def test_generators_depend_on_seed_step_layer_and_purpose_only():
    def draw(seed=0, step=0, layer=0, purpose="grow"):
        return torch.rand(1, generator=Context(step=step, seed=seed).generator(purpose, layer)).item()

    assert draw() == draw()
    assert len({draw(), draw(seed=1), draw(step=1), draw(layer=1), draw(purpose="birth")}) == 5
