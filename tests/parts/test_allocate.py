import pytest
import torch
from tests.fakes import ListLayer, _

from rewire.core import Signal
from rewire.core.layer import Context
from rewire.core.views import Edited
from rewire.parts import GlobalTop, InPlace, Proportional


def allocate(part, layers, drops, n, regrow=True):
    after = [
        Edited(layer, torch.tensor(d, dtype=torch.int64), i, regrow)
        for i, (layer, d) in enumerate(zip(layers, drops, strict=True))
    ]
    return part(layers, after, n, Context())


def test_in_place_gives_back_what_was_lost():
    layers = [ListLayer([1.0, 1.0, _]), ListLayer([1.0, 1.0, 1.0, 1.0])]
    assert allocate(InPlace(), layers, [[0], [1, 2]], 3) == [1, 2]


def test_in_place_while_the_density_falls_gives_back_in_proportion():
    layers = [ListLayer([1.0] * 4), ListLayer([1.0] * 8)]
    assert allocate(InPlace(), layers, [[0, 1], [0, 1, 2, 3]], 3) == [1, 2]


def test_global_top_counts_the_layers_share_of_the_strongest():
    layers = [
        ListLayer([1.0, _, _, _], grad=[0, 5, 1, 0]),
        ListLayer([1.0, 1.0, _, _, _], grad=[9, 8, 7, 6, 2]),
        ListLayer([1.0, _, _], grad=[0, 3, 4]),
    ]
    # The second layer drops position 1, whose gradient is 8. Candidates: 5 1 0 | 8 7 6 2 | 3 4; largest: 8 7 6 5 4.
    assert allocate(GlobalTop(), layers, [[], [1], []], 5) == [1, 3, 1]


def test_a_layer_that_fills_up_gets_no_more_than_its_room():
    layers = [ListLayer([1.0, _, 1.0], grad=[0, 9, 9]), ListLayer([1.0, _, _, _], grad=[0, 3, 2, 1])]
    # The first layer's candidates are positions 1 and the dropped 2; it becomes dense, the other two go elsewhere.
    assert allocate(GlobalTop(), layers, [[2], []], 4) == [2, 2]


def test_zero_gradients_do_not_fill_the_first_layer():
    layers = [ListLayer([1.0, *[_] * 8], grad=[0.0] * 9), ListLayer([1.0, *[_] * 4], grad=[0, 0, 3, 0, 0])]
    # One strong candidate; the other five go by the room that is left: 8 and 3 -> 3.6 and 1.4.
    assert allocate(GlobalTop(), layers, [[], []], 6) == [4, 2]


def test_scaled_by_layer():
    layers = [ListLayer([1.0, _, _], grad=[100, 50, 40]), ListLayer([1.0, _, _], grad=[1, 0.9, 0.8])]
    assert allocate(GlobalTop(), layers, [[], []], 2) == [2, 0]
    assert allocate(GlobalTop(scale="layer"), layers, [[], []], 2) == [0, 2]  # 0.5 0.4 against 0.9 0.8


def test_dsr_in_proportion_to_the_survivors():
    layers = [ListLayer([1.0, 1.0, 1.0, *[_] * 10]), ListLayer([1.0, 1.0, *[_] * 10])]
    assert allocate(Proportional(), layers, [[0], [0]], 3) == [2, 1]  # 2 and 1 survive


def test_dsr_overflow_goes_to_the_others():
    layers = [ListLayer([1.0, 1.0, 1.0, 1.0, _]), ListLayer([1.0, *[_] * 9])]
    # 3 and 1 survive, 6 are to be grown: 4.5 for a layer with room for 2. It fills up, 4 go to the other.
    assert allocate(Proportional(), layers, [[0], []], 6) == [2, 4]


def test_snfs_in_proportion_to_the_mean_momentum():
    layers = [
        ListLayer([1.0, 1.0, *[_] * 6], momentum=[3, -1, 9, 9, 9, 9, 9, 9]),
        ListLayer([1.0, *[_] * 6], momentum=[1] * 7),
    ]
    assert allocate(Proportional("momentum"), layers, [[], []], 3) == [2, 1]  # means 2 and 1


def test_a_frozen_layer_gets_nothing():
    layers = [ListLayer([1.0, _, _], grad=[0, 9, 9], frozen=True), ListLayer([1.0, _, _], grad=[0, 1, 1])]
    for part in (GlobalTop(), Proportional(), InPlace()):
        assert allocate(part, layers, [[], []], 2) == [0, 2]


def test_wrong_names():
    with pytest.raises(ValueError, match="'survivors' or 'momentum', not 'nnz'"):
        Proportional("nnz")
    with pytest.raises(ValueError, match="'raw' or 'layer', not 'mean'"):
        GlobalTop(Signal.GRAD, "mean")
