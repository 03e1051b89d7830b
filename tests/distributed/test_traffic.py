"""FSDP2: what a rewiring sends and what a rank holds, measured and by the formulas of ``rewire.analysis.scale``."""

import pytest
import torch
from tests.distributed import test_structure as structured
from tests.distributed.ranks import run
from tests.distributed.training import EVERY, make, sparse, step

import rewire
from rewire.analysis.scale import memory_fsdp, rewiring_ddp, rewiring_fsdp
from rewire.stores.optimizer.state import state_tensors

BY_CHANCE = ("dsr", "deepr", "granet", "gmp", "acdc")  # what they send depends on what happens to be dropped


def sent():
    """The bytes of one rewiring of every method, measured."""
    measured = {}
    for name in rewire.METHODS:
        model, optimizer, rewirer = sparse(name, "fsdp")
        every = 1 if name == "deepr" else EVERY
        for number in range(every - 1):
            step(model, optimizer, number)
        before = rewirer.traffic
        step(model, optimizer, every - 1)
        measured[name] = (rewirer.traffic - before, len(rewirer.history))
        quiet = rewirer.traffic
        if every > 1:
            step(model, optimizer, every)
            assert rewirer.traffic == quiet  # an ordinary step
    held = sum(one.element_size() * one.numel() for one in _everything(rewirer, optimizer))
    return measured, held


def _everything(rewirer, optimizer):
    for layer in rewirer.layers:
        yield from (layer.weight, layer.local_mask, layer.weight)  # the gradient is as large as the weight
        yield from (state.to_local() for state in state_tensors(optimizer, layer.parameter))


@pytest.mark.parametrize("size", [2, 4])
def test_the_formulas_bound_what_is_sent_and_held(tmp_path, size):
    layers = {name: [layer.spec for layer in sparse(name)[2].layers] for name in rewire.METHODS}
    for measured, held in run(sent, size, tmp_path / "ranks"):
        for name, (traffic, rewirings) in measured.items():
            bound = rewiring_fsdp(make(name), layers[name], size, torch.float64, fraction=0.4)
            # Layers that move are counted as equally dense, and are not quite.
            assert traffic.bytes <= bound.bytes * (1.01 if make(name).needs_whole_layers else 1), name
            assert traffic.collectives <= bound.collectives, name
            if rewirings and name not in BY_CHANCE:
                assert traffic.bytes > 0.7 * bound.bytes, name
        assert measured["static"][0].bytes == 0
        assert held <= memory_fsdp(make("ggr"), layers["ggr"], size, torch.float64, states=1).steady
    assert rewiring_ddp(4, 2).bytes == 40  # as measured in test_ddp


def sent_under_constraints():
    """The bytes of one rewiring of GGR under every constraint, with the layers that it rewires."""
    measured = {}
    for label in structured.CONSTRAINTS:
        model, optimizer, rewirer = structured.sparse("ggr", label, "fsdp")
        structured.step(model, optimizer, 0)
        before = rewirer.traffic
        structured.step(model, optimizer, 1)
        assert len(rewirer.history) == 1
        measured[label] = (rewirer.traffic - before, rewirer.method, [layer.spec for layer in rewirer.layers])
    return measured


@pytest.mark.filterwarnings("ignore:no signal passes")
@pytest.mark.parametrize("size", [2, 4])
def test_the_formulas_bound_what_is_sent_under_a_constraint(tmp_path, size):
    for measured in run(sent_under_constraints, size, tmp_path / "ranks"):
        for label, (traffic, method, layers) in measured.items():
            bound = rewiring_fsdp(method, layers, size, torch.float64, fraction=0.4)
            assert 0.55 * bound.bytes < traffic.bytes <= bound.bytes, label
            assert traffic.collectives <= bound.collectives, label
