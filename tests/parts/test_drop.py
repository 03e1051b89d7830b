import pytest
import torch
from tests.fakes import ListLayer, _

from rewire.core.layer import Context
from rewire.parts import BelowThreshold, Lowest, SignFlipped


def dropped(drop, layers, n, ctx=None):
    return [p.tolist() for p in drop(layers, n, ctx or Context())]


def test_lowest_takes_the_same_fraction_of_every_layer():
    layers = [
        ListLayer([0.5, -0.1, _, 0.9, 0.3]),  # 4 active
        ListLayer([0.01, 0.02, 0.03, _, 0.05, 0.06, 0.07, 0.08, 0.04]),  # 8 active, all smaller
    ]
    # A quarter of each: 1 and 2, although all of the smallest weights of the network are in the second layer.
    assert dropped(Lowest(), layers, 3) == [[1], [0, 1]]


def test_lowest_network_wide():
    layers = [ListLayer([0.5, -0.1, _, 0.9]), ListLayer([0.01, 0.02, 0.03, _, 0.6])]
    assert dropped(Lowest(scope="network"), layers, 4) == [[1], [0, 1, 2]]


def test_ties_go_by_position():
    assert dropped(Lowest(), [ListLayer([0.2, 0.1, -0.1, 0.1])], 2) == [[1, 2]]


@pytest.mark.parametrize("scope", ["layer", "network"])
def test_a_layer_keeps_its_last_weight(scope):
    layers = [ListLayer([_, 0.001, _]), ListLayer([0.5, 0.6, 0.7])]
    assert dropped(Lowest(scope=scope), layers, 2) == [[], [0, 1]]


def test_a_frozen_layer_loses_nothing():
    layers = [ListLayer([0.1, 0.2, 0.3], frozen=True), ListLayer([0.5, 0.6, 0.7])]
    assert dropped(Lowest(), layers, 2) == [[], [0, 1]]
    assert dropped(BelowThreshold(initial=1.0), layers, 2) == [[], [0, 1]]


def test_dsr_drops_below_the_threshold_and_doubles_it_when_too_few_went():
    layers = [ListLayer([0.0005, 0.5, -0.0009, _]), ListLayer([0.4, 0.0011, 0.3])]
    ctx = Context()
    assert dropped(BelowThreshold(), layers, 3, ctx) == [[0, 2], []]  # 2 of 3 wanted: fewer than 90 %
    assert ctx.memory["threshold"] == 2e-3
    assert dropped(BelowThreshold(), layers, 3, ctx) == [[0, 2], [1]]  # exactly 3: stays
    assert ctx.memory["threshold"] == 2e-3
    assert dropped(BelowThreshold(), layers, 2, ctx) == [[0, 2], [1]]  # 3 of 2 wanted: more than 110 %
    assert ctx.memory["threshold"] == 1e-3


def test_dsr_keeps_the_largest_weight_of_a_layer_below_the_threshold():
    assert dropped(BelowThreshold(initial=1.0), [ListLayer([0.1, -0.3, 0.2])], 2) == [[0, 2]]


def test_deepr_drops_what_changed_its_sign():
    layer = ListLayer([0.1, -0.2, _, 0.3, 0.0, -0.4], sign=[1, 1, 0, -1, -1, -1])
    # 1: + became -, 3: - became +; 4 arrived at exactly zero and has not flipped yet.
    assert dropped(SignFlipped(), [layer], 0) == [[1, 3]]


def test_deepr_keeps_the_last_weight():
    assert dropped(SignFlipped(), [ListLayer([0.1, 0.2], sign=[-1, -1])], 0) == [[0]]


def test_unknown_scope():
    with pytest.raises(ValueError, match="scope must be 'layer' or 'network', not 'global'"):
        Lowest(scope="global")


def test_the_upper_bounds_hold():
    layers = [ListLayer([0.5, 0.1, 0.9, 0.3]), ListLayer([0.01, 0.02])]
    for drop in (Lowest(), Lowest(scope="network"), BelowThreshold(initial=0.2), SignFlipped()):
        most = drop.most(layers, 3)
        assert all(len(p) <= m for p, m in zip(drop(layers, 3, Context()), most, strict=True))
    assert torch.equal(Lowest()(layers, 0, Context())[0], torch.empty(0, dtype=torch.int64))
