"""What captions count: seeds, failure lines, networks, runs that are not finished. Words may change, numbers not."""

import re
from dataclasses import replace

import pytest
from tests.lab.made_up import record

from rewire.lab.report import tables
from rewire.lab.run import Run

CIFAR = Run(data="cifar100", model="resnet-18")


def caption(make, runs):
    """The caption of the only table, from accuracies by run."""
    (table,) = make([record(run, accuracy) for run, accuracy in runs.items()])
    return table.caption


def seeds(run, *accuracies):
    return {replace(run, seed=seed): accuracy for seed, accuracy in enumerate(accuracies)}


@pytest.mark.parametrize(
    ("counts", "words"), [((1, 1), "One seed"), ((3, 3), "over 3 seeds"), ((1, 3), "over 1 to 3 seeds")]
)
def test_how_many_seeds_a_mean_has(counts, words):
    runs = seeds(CIFAR, *[0.6] * counts[0]) | seeds(replace(CIFAR, method="set"), *[0.5] * counts[1])
    text = caption(tables.table1, runs)
    assert words in text
    assert ("standard deviation" in text) == (max(counts) > 1)


def test_the_range_of_seeds_has_two_ends_only():
    runs = seeds(CIFAR, 0.6) | seeds(replace(CIFAR, method="set"), *[0.5] * 2)
    runs |= seeds(replace(CIFAR, method="rigl"), *[0.5] * 5)
    assert "over 1 to 5 seeds" in caption(tables.table1, runs)


def test_the_failure_line_is_that_of_the_data():
    failed = re.compile(r"- failed: below ([\d.%or ]+?) accuracy")
    assert failed.search(caption(tables.table1, {CIFAR: 0.01}))[1] == "5 %"
    digits = Run(data="digits", model="mlp")
    assert failed.search(caption(tables.table1, {digits: 0.1}))[1] == "15 %"
    both = {CIFAR: 0.01, digits: 0.1, replace(CIFAR, method="set"): 0.5, replace(digits, method="set"): 0.5}
    assert failed.search(caption(tables.table2, both))[1] == "5 % or 15 %"
    assert not failed.search(caption(tables.table1, {CIFAR: 0.6}))


def test_averages_say_over_how_many_networks_they_go():
    runs = {CIFAR: 0.6, replace(CIFAR, model="vgg16"): 0.5, replace(CIFAR, data="tiny-imagenet"): 0.4}
    names = "ResNet-18 on CIFAR-100; VGG16 on CIFAR-100; ResNet-18 on Tiny-ImageNet"
    assert f"every network on every data set (3: {names})" in caption(tables.table2, runs)
    assert "(1: ResNet-18 on CIFAR-100)" in caption(tables.table2, {CIFAR: 0.6})


@pytest.mark.parametrize("make", [tables.table4, tables.table_costs])
def test_a_table_of_measures_names_its_data_and_its_sparsity(make):
    text = caption(make, {replace(CIFAR, sparsity=0.9): 0.6})
    assert "CIFAR-100 at s=0.9" in text
    (table,) = make([record(replace(CIFAR, sparsity=0.99), 0.6)])
    assert table.title.endswith("on CIFAR-100, s=0.99")


def test_the_mark_of_failed_seeds_is_explained_where_it_is_used():
    assert "†" in caption(tables.table1, seeds(CIFAR, 0.6, 0.01))
    assert "†" not in caption(tables.table1, seeds(CIFAR, 0.01, 0.01))  # the whole cell failed
    assert "†" not in caption(tables.table1, seeds(CIFAR, 0.6, 0.6))


def test_what_is_not_finished_is_counted():
    (table,) = tables.table1([record(CIFAR, 0.6), record(replace(CIFAR, seed=1)), record(replace(CIFAR, method="set"))])
    assert "1 of 2 cells" in table.caption
    assert "2 of 3 runs" in table.caption
    assert "not finished" not in caption(tables.table1, {CIFAR: 0.6})
