"""The comparison of all methods on the digits: every network is trained with every method that can train it."""

import pytest
import torch

import rewire
from rewire.lab.experiments import runs_of
from rewire.lab.models import build

IMAGE = (1, 8, 8)
RUNS = runs_of("field")
METHODS_OF = {model: {run.method for run in RUNS if run.model == model} for model in ("mlp", "vgg-small")}


@pytest.mark.parametrize("model", sorted(METHODS_OF))
def test_methods_that_refuse_a_network_are_left_out_and_no_others(model):
    trained = set()
    for name in rewire.METHODS:
        network = build(model, classes=10, image=IMAGE)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        try:
            rewire.sparsify(network, optimizer, rewire.METHODS[name](density=0.3, every=1, until=9))
        except ValueError:
            continue
        trained.add(name)
    assert METHODS_OF[model] == {"dense", *trained}


def test_paths_between_neurons_are_for_the_network_of_linear_layers():
    assert METHODS_OF["mlp"] - METHODS_OF["vgg-small"] == {"chts"}


def test_two_sparsities_and_five_seeds_of_every_method():
    for model, names in METHODS_OF.items():
        for name in names - {"dense"}:
            cells = [(run.sparsity, run.seed) for run in RUNS if (run.model, run.method) == (model, name)]
            assert sorted(cells) == [(sparsity, seed) for sparsity in (0.97, 0.99) for seed in range(5)]
