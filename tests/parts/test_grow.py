import pytest
import torch
from tests.fakes import ListLayer, _

from rewire.core import Signal
from rewire.core.layer import Context
from rewire.core.views import Edited
from rewire.parts import AtRandom, Mix, RandomSign, Strongest, Tiny
from rewire.parts.grow import growth

LAYER = ListLayer([1.0, _, _, 1.0, _, _, _, _], grad=[9, 1, -8, 7, 2, 0, 5, 3])


def after(drop=(3,), regrow=True):
    return Edited(LAYER, torch.tensor(drop, dtype=torch.int64), 0, regrow)


def test_strongest_by_hand():
    # Candidates: 1:1 2:8 3:7 (just dropped) 4:2 5:0 6:5 7:3.
    assert Strongest()(after(), 3, Context()).tolist() == [2, 3, 6]
    assert Strongest()(after(regrow=False), 3, Context()).tolist() == [2, 6, 7]


def test_mix_gives_the_odd_one_to_the_gradient():
    grown = Mix()(after(), 3, Context()).tolist()
    assert len(grown) == 3
    assert {2, 3} <= set(grown)  # two by gradient
    assert len(set(grown) - {2, 3}) == 1  # one at random from what is left
    assert 0 not in grown


def test_shares_are_exact():
    layer = Edited(ListLayer([1.0, *[_] * 19], grad=list(range(20))), torch.tensor([], dtype=torch.int64), 0)
    for share, strong in ((0.9, 9), (0.8, 8), (0.5, 5), (0.0, 0)):
        grown = {tuple(Mix(share=share)(layer, 10, Context(seed=s)).tolist()) for s in range(30)}
        best = set(range(20 - strong, 20))
        assert all(best <= set(one) for one in grown)
        assert len(set.intersection(*map(set, grown))) == strong  # no more than these are always chosen


def test_mix_of_one_is_by_gradient():
    assert Mix()(after(), 1, Context()).tolist() == [2]


def test_mix_covers_everything_when_everything_is_grown():
    assert Mix()(after(), 7, Context()).tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_what_has_no_gradient_is_grown_at_random():
    layer = Edited(ListLayer([1.0, _, _, _, _], grad=[0, 0, 4, 0, 0]), torch.tensor([], dtype=torch.int64), 0)
    seen = {tuple(Strongest()(layer, 2, Context(seed=seed)).tolist()) for seed in range(40)}
    assert seen == {(1, 2), (2, 3), (2, 4)}  # position 2 always, the other is random, not the first zero


def test_at_random_differs_by_step_and_never_hits_active():
    draws = {tuple(AtRandom()(after(), 2, Context(step=step)).tolist()) for step in range(50)}
    assert len(draws) > 10
    assert not any(0 in draw for draw in draws)


def test_birth():
    assert Tiny()(2, after(), Context()).tolist() == [1e-10, 1e-10]
    signs = RandomSign()(200, after(), Context())
    assert set(signs.tolist()) == {1e-10, -1e-10}
    assert 60 < (signs > 0).sum() < 140


def test_unknown_growth():
    with pytest.raises(ValueError, match="unknown growth 'gradent'. Did you mean 'gradient'"):
        growth("gradent")
    with pytest.raises(ValueError, match="share grown by signal"):
        Mix(Signal.GRAD, share=1.5)
