"""A few architectures of the zoo with everything that is tried; all of them with ``make zoo``."""

import pytest
from tests.zoo import hub, wild
from tests.zoo.checks import ABILITIES, Outcome, WrongError, outcome
from tests.zoo.hub import Entry

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


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (WrongError("the output differs by 1"), "wrong"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "wrong"),
        (ValueError("attention.qkv cannot be packed"), "refused"),
        (ValueError("something is not right"), "wrong"),
    ],
)
def test_what_counts_as_refused(error, word, monkeypatch):
    def fail(entry: Entry) -> Outcome:
        raise error

    monkeypatch.setitem(ABILITIES, "failing", fail)
    beit = next(one for one in wild.entries() if one.name == "BEiT-like")
    assert outcome(beit, "failing").word == word
