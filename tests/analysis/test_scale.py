"""The numbers in docs/scale.md are those of the formulas; that the formulas hold is tested in tests/distributed."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import rewire
from rewire.analysis.scale import memory_fsdp, rewiring_ddp, rewiring_fsdp, transformer
from rewire.analysis.whole_layers import moved_layers
from rewire.core import LayerSpec, Signal
from rewire.parts import NM, Blocks, FanIn, Gather, GlobalTop, apportion

GRAD, MOMENTUM = Signal.GRAD, Signal.MOMENTUM

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
LAYERS = transformer(blocks=32, width=4096, hidden=11008)
RANKS = 64


def method(name):
    return rewire.METHODS[name](density=0.1, every=100, until=10_000)


def test_what_a_rewiring_sends():
    rows = re.findall(r"^\| (\w+) \| (\d+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    assert {name for name, *_ in rows} == {"set", "rigl", "granet", "snfs", "ggr", "dsr"}
    for name, collectives, megabytes in rows:
        sent = rewiring_fsdp(method(name), len(LAYERS), RANKS)
        assert (sent.collectives, round(sent.bytes / 1e6, 1)) == (int(collectives), float(megabytes)), name


def test_what_a_rank_holds():
    rows = dict(re.findall(r"^\| (\w[^|]*) \| ([\d.]+) \|$", PAGE, re.MULTILINE))
    memory = memory_fsdp(method("ggr"), LAYERS, RANKS)
    expected = (memory.weights, memory.gradients, memory.state, memory.masks, memory.rewiring, memory.start)
    names = ("weights", "gradients", "optimizer state", "masks")
    names += ("for a moment, at a rewiring", "once, in `sparsify`, CPU")
    assert rows == {name: f"{held / 1e9:.2f}" for name, held in zip(names, expected, strict=True)}


def test_the_comparisons_in_the_text():
    weights = sum(layer.numel for layer in LAYERS)
    assert len(LAYERS) == 224
    assert round(weights / 1e9, 2) == 6.48
    assert round(4 * weights * 63 / 64 / 1e9, 1) == 25.5
    candidates = round(0.1 * 0.1 * weights)
    assert (round(candidates / 1e6), round(candidates * 12 / 1e9, 1)) == (65, 0.8)


@pytest.mark.parametrize(("layers", "ranks"), [(3, 2), (10, 4), (224, 64)])
def test_the_formulas_of_the_table(layers, ranks):
    gather = 8 * layers * (ranks - 1)
    one = 8 * (ranks - 1)

    def select(contests, lists=layers):
        return 4096 * 4 * contests * (ranks - 1) / ranks + 8 * lists * (ranks - 1)

    rigl = 8 * gather + select(layers) + layers * (select(1, lists=1) + one)
    expected = {
        "set": 8 * gather + select(layers),
        "gmp": 8 * gather + select(layers),
        "rigl": rigl,
        "set_rigl": rigl,
        "granet": rigl + select(1),
        "ggr": rigl + 2 * select(1) + gather,
        "snfs": rigl + 2 * gather,
        "dsr": 10 * gather + select(layers),
        "deepr": 9 * gather + select(layers),
    }
    for name, sent in expected.items():
        assert rewiring_fsdp(method(name), layers, ranks).bytes == pytest.approx(sent), name
    assert rewiring_ddp(layers, ranks).bytes == 8 * (layers + 1) * (ranks - 1)


def test_a_part_from_outside_declares_what_it_sends():
    @dataclass(frozen=True)
    class Equally:
        signals = frozenset()

        def most(self, dropped, room):
            return [sum(dropped)] * len(dropped)

        def __call__(self, before, after, n, ctx):
            return apportion(n, [1] * len(after), [layer.room for layer in after])

    @dataclass(frozen=True)
    class EquallyAfterACount(Equally):
        def collectives(self, layers):
            return [Gather(layers)]

    with pytest.raises(
        ValueError, match=r"Equally\(\) does not declare what it sends to other ranks: give it a method"
    ):
        rewiring_fsdp(replace(method("rigl"), allocate=Equally()), 10, 4)
    sent = rewiring_fsdp(replace(method("rigl"), allocate=EquallyAfterACount()), 10, 4)
    assert sent.bytes - rewiring_fsdp(method("rigl"), 10, 4).bytes == 8 * 10 * 3


def test_a_global_ranking_of_momentum_is_made_once():
    # Momentum survives the optimizer's step: its candidates need not be captured before it.
    by_grad, by_momentum = (replace(method("rigl"), allocate=GlobalTop(signal)) for signal in (GRAD, MOMENTUM))
    selection = 4096 * 4 * 3 / 4 + 8 * 10 * 3
    assert rewiring_fsdp(by_grad, 10, 4).bytes - rewiring_fsdp(by_momentum, 10, 4).bytes == selection


def test_wider_values_take_more_digits():
    narrow, wide = (rewiring_fsdp(method("set"), 4, 2, dtype).bytes for dtype in (torch.bfloat16, torch.float64))
    assert narrow == rewiring_fsdp(method("set"), 4, 2).bytes
    assert wide - narrow == 4 * 2 * 8 * 256 * 4 * 1 / 2


def matrix(rows, columns):
    return LayerSpec(f"{rows} x {columns}", torch.Size([rows, columns]))


def test_a_layer_that_one_rank_rewires_by_hand():
    # CHTs, one layer of 4 x 4 with half of its weights, two ranks: each sends
    selected = 8 * (2 * 8 * 256 / 2) + 8  # 256 counts for each of eight bytes, and the ties: keys are float64
    counted = 4 * 8 + 3 * 8  # four times one number, and the record
    drawn = 2 * 8  # how many were selected, how many positions are free
    moved = 8 + 2 * 8 + (4 + 4) * 8  # does it move, two lengths, four positions with their weights
    returned = 3 * 8 + 12 * 8  # three lengths, four positions to drop, four to grow with their values
    method = rewire.chts(density=0.5, every=100, until=10_000, fraction=0.5)
    sent = rewiring_fsdp(method, [matrix(4, 4)], 2, fraction=0.5)
    assert sent.bytes == counted + 2 * selected + drawn + moved + returned == 33064
    assert sent.collectives == 5 + 2 * 9 + 2 + 3 + 2


def test_only_layers_whose_tiles_are_cut_are_sent():
    method = rewire.rigl(density=0.5, every=100, until=10_000, constraint=Blocks(2))
    (moved,) = moved_layers(method, [matrix(8, 4), matrix(6, 4)], 2)
    assert moved.owner == 1
    # Three rows of four: six weights with position, weight and gradient, six others with position and gradient.
    assert (moved.lists, moved.numbers, moved.in_all) == (5, 6 * 3 + 6 * 2, 60)
    with_it, without = (rewiring_fsdp(method, [matrix(8, 4), matrix(rows, 4)], 2, fraction=0.5) for rows in (6, 4))
    assert with_it.bytes - without.bytes == (5 + 30 + 3 + 18) * 8
    assert with_it.collectives - without.collectives == 4


def test_means_over_tiles_are_of_eight_bytes():
    narrow, wide = (
        rewiring_fsdp(rewire.set_(density=0.5, every=1, until=9, constraint=Blocks(2)), [matrix(8, 4)], 2, dtype).bytes
        for dtype in (torch.float32, torch.float64)
    )
    assert narrow == wide


def test_what_limits_and_even_tiles_ask_of_other_ranks():
    layers, ranks = [matrix(8, 4), matrix(4, 8)], 2
    gather, one = 8 * len(layers), 8

    def bytes_under(constraint):
        return rewiring_fsdp(rewire.rigl(density=0.5, every=1, until=9, constraint=constraint), layers, ranks).bytes

    assert bytes_under(NM(2, 4)) - bytes_under(None) == 3 * gather + 2 * one
    assert bytes_under(FanIn()) - bytes_under(NM(2, 4)) == 4 * gather
    selected = [digits * 2 * 8 * 256 * 2 / 2 + gather for digits in (4, 8)]  # gradients, and tiles by their counts
    assert bytes_under(FanIn(0.3)) - bytes_under(FanIn()) == sum(selected) + 2 * gather


@pytest.mark.parametrize("method", [method("chts"), method("srigl")], ids=["chts", "srigl"])
def test_a_number_of_layers_does_not_say_which_are_sent(method):
    with pytest.raises(
        ValueError, match="some layers are sent to one rank, .* give a list of .*, and not .* number, 10"
    ):
        rewiring_fsdp(method, 10, 2)
