"""Against figures published elsewhere, and by hand."""

import pytest
import torch
from torch import nn

import rewire
from rewire.analysis.flops import macs, positions, ranked_steps, training_macs
from rewire.core.method import Rewiring
from rewire.lab import models
from rewire.model.select import find_layers


class Bottleneck(nn.Module):
    def __init__(self, inputs, planes, stride):
        super().__init__()
        self.one = nn.Conv2d(inputs, planes, 1, bias=False)
        self.two = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.three = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.down = nn.Conv2d(inputs, 4 * planes, 1, stride, bias=False) if inputs != 4 * planes else nn.Identity()

    def forward(self, x):
        return self.three(self.two(self.one(x))) + self.down(x)


def resnet50():
    layers, inputs = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.MaxPool2d(3, 2, 1)], 64
    for planes, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, planes, stride if block == 0 else 1))
            inputs = 4 * planes
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def counts(model, shape):
    specs = [one.spec for one in find_layers(model)[0]]
    return specs, positions(model, torch.zeros(1, *shape))


def test_resnet50_and_its_erk_at_90_percent():
    with torch.device("meta"):
        model = resnet50()
        specs, applied = counts(model, (3, 224, 224))
    dense = macs({one.name: one.numel for one in specs}, applied)
    assert dense == pytest.approx(4.1e9, rel=0.01)
    n = round(0.1 * sum(one.numel for one in specs))
    sparse = dict(
        zip((one.name for one in specs), rewire.parts.erdos_renyi_kernel(specs, n, [1] * len(specs)), strict=True)
    )
    assert macs(sparse, applied) / dense == pytest.approx(0.24, abs=0.005)  # RigL, table 2


def test_resnet18_on_cifar():
    specs, applied = counts(models.build("resnet-18", classes=10, image=(3, 32, 32)), (3, 32, 32))
    assert macs({one.name: one.numel for one in specs}, applied) == pytest.approx(0.56e9, rel=0.01)


def test_a_frozen_batch_norm_stays_in_evaluation_mode():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)).train()
    model[1].eval()
    positions(model, torch.zeros(4, 2))
    assert [module.training for module in model] == [True, False, True]


def test_a_weight_that_two_modules_share_is_used_by_both():
    encode, decode = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1, stride=2)
    decode.weight = encode.weight
    assert positions(nn.Sequential(encode, decode), torch.zeros(1, 2, 6, 4)) == {"0": 24 + 6}


@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_an_unbatched_image_is_counted_as_one_of_a_batch(batch):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ConvTranspose2d(2, 1, 2, stride=2))
    assert positions(model, torch.zeros(*batch, 1, 8, 6)) == {"0": 6 * 4, "1": 6 * 4}
    assert positions(nn.Conv1d(1, 2, 3), torch.zeros(*batch, 1, 8)) == {"weight": 6}


SETTING = {"initial": {"a": 10, "b": 0}, "sizes": {"a": 100, "b": 100}, "applied": {"a": 1, "b": 5}, "steps": 10}
MOVE = [Rewiring(4, 0.5, [4, 0], [0, 4], [0, 0])]  # four weights go to where each is used five times


def test_training_is_integrated_over_the_densities():
    # f_S is 10 up to step 4 and 6 + 4 * 5 = 26 for six more; f_D is 600.
    assert training_macs(**SETTING, history=[]) == 10 * 3 * 10
    assert training_macs(**SETTING, history=MOVE) == 4 * 30 + 6 * 78
    assert training_macs(**SETTING, history=MOVE, ranked=[4]) == 3 * 30 + (20 + 600) + 6 * 78
    assert training_macs(**SETTING, history=MOVE, ranked=range(1, 11)) == 4 * 620 + 6 * (52 + 600)


def test_a_rewiring_that_moves_nothing_has_ranked_all_the_same():
    # Steps 4 and 8 were scheduled, and at 8 the fraction had fallen to nothing: 2 * 26 + 600 instead of 3 * 26.
    assert training_macs(**SETTING, history=MOVE, ranked=[4, 8]) == 3 * 30 + 620 + 3 * 78 + 652 + 2 * 78
    assert training_macs(**SETTING, history=[], ranked=[4, 8]) == 8 * 30 + 2 * 620


def test_a_rewiring_that_was_put_off_has_ranked_twice():
    # Scheduled for 3, where a gradient was not finite; carried out at 4.
    assert training_macs(**SETTING, history=MOVE, ranked=[3]) == 2 * 30 + 2 * 620 + 6 * 78


def test_which_steps_are_ranked():
    options = {"density": 0.1, "every": 3, "until": 7}
    assert list(ranked_steps(rewire.rigl(**options), 10)) == [3, 6]
    assert list(ranked_steps(rewire.ggr(**options), 4)) == [3]
    assert list(ranked_steps(rewire.ggr(**options, growth="random"), 10)) == [3, 6]  # the allocation ranks
    assert list(ranked_steps(rewire.set_(**options), 10)) == []
    assert list(ranked_steps(rewire.static(density=0.1), 10)) == []
    assert list(ranked_steps(rewire.snfs(**options), 4)) == [1, 2, 3, 4]


def test_rigl_costs_what_its_paper_says():
    # (3 f_S dT + 2 f_S + f_D) / (dT + 1) a step on average, with one rewiring in dT + 1 steps.
    history = [Rewiring(step, 0.1, [1], [1], [0]) for step in range(100, 1001, 100)]
    total = training_macs({"a": 10}, {"a": 100}, {"a": 1}, history, 1000, range(100, 1001, 100))
    assert total / 1000 == pytest.approx((3 * 10 * 99 + 2 * 10 + 100) / 100)
