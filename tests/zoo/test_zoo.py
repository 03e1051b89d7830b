"""A few architectures of the zoo with everything that is tried; all of them with ``make zoo``."""

import pytest
import torch
from tests.zoo import hub, wild, wild_attention
from tests.zoo.checks import ABILITIES, WrongError, outcome
from torch import nn

from rewire.model.select import find_layers

FROM_HUB = ("GPT2LMHeadModel", "MixtralForCausalLM", "XLNetModel")
FROM_WILD = ("BEiT-like", "MobileNetV3-like", "Mamba-like", "nn.TransformerEncoder", "LSTM language model, on request")
QUICK = [one for one in hub.entries() if one.name in FROM_HUB] + [
    one for one in wild.entries() if one.name in FROM_WILD
]


@pytest.mark.parametrize("ability", ABILITIES)
@pytest.mark.parametrize("entry", QUICK, ids=lambda entry: entry.name)
def test_exact_or_refused_by_a_sentence(entry, ability, one_thread):
    result = outcome(entry, ability)
    assert result.word in ("exact", "refused"), result.detail


def test_the_quick_ones_are_all_there():
    assert len(QUICK) == len(FROM_HUB) + len(FROM_WILD)
    assert len(hub.entries()) >= 40


def test_no_two_entries_have_the_same_name():
    names = [one.name for one in hub.entries() + wild.entries()]
    assert len(set(names)) == len(names)


def failing(raise_error):
    beit = next(one for one in wild.entries() if one.name == "BEiT-like")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ABILITIES, "failing", lambda entry: raise_error())
        return outcome(beit, "failing").word


def test_what_counts_as_refused():
    def differ():
        raise WrongError("the output differs by 1")

    def mentions_a_layer():
        raise ValueError("attention.qkv is not right")

    assert failing(differ) == "wrong"
    assert failing(mentions_a_layer) == "wrong"  # not raised by Rewire
    assert failing(lambda: nn.Linear(2, 3)(torch.zeros(1, 4))) == "wrong"
    assert failing(lambda: find_layers(wild_attention.Beit(), include="nothing")) == "refused"  # lists the layers
    assert failing(lambda: find_layers(nn.Sequential(nn.ReLU()))) == "wrong"  # names no layer of this model
