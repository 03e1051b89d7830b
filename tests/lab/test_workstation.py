"""What the plan of the workstation's study promises: images and seeds."""

from collections import defaultdict
from dataclasses import replace
from itertools import product

import pytest

from rewire.lab.data.datasets import DATASETS
from rewire.lab.experiments import workstation as ws
from rewire.lab.experiments.registry import runs_of
from rewire.lab.experiments.variants import HERE
from rewire.lab.report import claim_rules as rules
from rewire.lab.report.findings import Study
from rewire.lab.report.questions import LAYOUTS
from rewire.lab.report.questions import starts as both_starts

PLAN = runs_of("evidence", "workstation")
CIFAR = DATASETS["cifar100"]
ONCE = replace(ws.VGG, sparsity=ws.HIGH, start="uniform", method="ggr", store="masked")  # to show what packing saves


def seeds_of(runs):
    """The seeds of every configuration."""
    found = defaultdict(set)
    for run in runs:
        found[replace(run, seed=0)].add(run.seed)
    return found


def test_convolutional_networks_see_600_000_images_of_cifar100():
    runs = [run for run in PLAN if run.data == "cifar100" and run.model != "vit"]
    assert {run.model for run in runs} == {"vgg16", "resnet-18-stride2", "mobilenet-v2-stride2"}
    assert all(run.epochs * CIFAR.train >= 600_000 and run.limit is None for run in runs)


def test_every_configuration_has_three_seeds():
    assert all(len(seeds) >= 3 for run, seeds in seeds_of(PLAN).items() if run != ONCE)


def cells_of_claims():
    """What decides a claim, on CIFAR-100: every method in every cell of the layout."""
    layout = LAYOUTS["workstation"]
    compared = [{"method": name} for name in ("set", "rigl", "dsr", "ggr")]
    growths = [*rules.GROWTHS.values(), *rules.IN_PLACE.values()]
    cells = [
        *product((*layout.uniform, layout.extreme), compared),
        *product((starts for cell in layout.both for starts in both_starts(cell)), compared),
        *product(layout.ablation["VGG16 on CIFAR-100"], growths),
        *product(layout.drop, [{"method": "ggr", "scope": "network"}]),
        *product(layout.low, [{"method": "set"}, {"method": "ggr"}]),
        *((cell, {}) for pair in layout.narrow for cell in pair),
        (layout.starved[0], {"method": f"{HERE}:ggr_starved"}),
    ]
    return [{**cell, **own} for cell, own in cells]


def test_what_claims_rest_on_has_five_seeds():
    study = Study([], PLAN)
    planned = [(cell, {run.seed for run in study.runs(cell)}) for cell in cells_of_claims()]
    assert len(planned) > 40
    for cell, seeds in planned:
        assert seeds == set(range(5)), cell


@pytest.mark.parametrize("name", ["table1", "table3", "drop", "equal-weights", "recovery", "connected", "transformers"])
def test_the_study_holds_the_experiments_that_it_is_made_of(name):
    assert set(runs_of(name, "workstation")) <= set(PLAN)
