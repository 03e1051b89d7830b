"""Newborn weights and several optimizers on several ranks: the same as in one process."""

import functools

import torch
from tests.distributed.ranks import run
from tests.distributed.training import EVERY, same, seen, sparse, step, train
from tests.stores.test_optimizer_newborns import Foreign

STEPS = 2 * EVERY + 3
MAKE = {
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.05, amsgrad=True),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.01),
    "foreign": lambda model: Foreign(model.parameters(), lr=0.05),
}


class Both:
    """Steps two optimizers, as a loop would."""

    def __init__(self, optimizers):
        self.optimizers = optimizers

    def step(self):
        for one in self.optimizers:
            one.step()

    def zero_grad(self):
        for one in self.optimizers:
            one.zero_grad()


def halves(model):
    parameters = list(model.parameters())
    return [torch.optim.Adam(parameters[:2], lr=0.05), torch.optim.SGD(parameters[2:], lr=0.5, momentum=0.9)]


def train_both(how="alone"):
    model, optimizers, rewirer = sparse("ggr", how, optimizer=halves)
    states = [seen(rewirer)]
    for number in range(STEPS):
        step(model, Both(optimizers), number)
        states.append(seen(rewirer))
    return states


@functools.cache
def alone():
    return everything("alone")


def everything(how):
    return {name: train("rigl", how, STEPS, optimizer=make) for name, make in MAKE.items()} | {"both": train_both(how)}


def quiet():
    """How many collectives each step calls; the fourth rewires."""
    model, optimizer, rewirer = sparse("rigl", "fsdp", optimizer=MAKE["adamw"], every=4)
    sent = []
    for number in range(7):
        before = rewirer.traffic
        step(model, optimizer, number)
        sent.append((rewirer.traffic - before).collectives)
    return sent


def check(how):
    return everything(how), quiet() if how == "fsdp" else None


def test_shards_have_the_weights_of_one_process(tmp_path):
    for found, sent in run(check, 4, tmp_path / "ranks", "fsdp"):
        for label, states in alone().items():
            assert states[-1]["history"]
            same(found[label], states)
        assert sent[1:3] == sent[5:] == [0, 0]
        assert sent[4] == 4  # the step after a rewiring: counts and means of the newborn weights


def test_copies_have_the_weights_of_one_process(tmp_path):
    for found, _ in run(check, 2, tmp_path / "ranks", "wrapped last"):
        for label, states in alone().items():
            same(found[label], states)
