"""How tables arrange their cells: ranks, and what the headings of columns say."""

from dataclasses import replace
from math import prod

from tests.lab.made_up import record
from tests.lab.report.test_tables import CIFAR, ranks

from rewire.lab.report import tables
from rewire.lab.report.render import to_markdown


def test_methods_of_different_recipes_are_not_compared():
    (table,) = tables.table1([record(replace(CIFAR, method="set", epochs=10), 0.4), record(CIFAR, 0.6)])
    assert ranks(table) == {("ResNet-18, epochs 10", "SET"): [None], ("ResNet-18, epochs 30", "GGR"): [None]}


def test_the_three_best_of_each_network_are_ranked_and_ties_share_a_rank():
    values = {"dense": 0.9, "static": 0.1, "set": 0.5240, "rigl": 0.52401, "dsr": 0.5642, "ggr": 0.5695}
    records = [record(replace(CIFAR, method=method), value) for method, value in values.items()]
    records += [record(replace(CIFAR, model="vgg16", method=method), 0.2) for method in ("set", "ggr")]
    (table,) = tables.table1(records)
    assert ranks(table) == {
        ("ResNet-18", "Dense"): [None],  # the reference is no rival
        ("ResNet-18", "Static"): [None],
        ("ResNet-18", "SET"): [3],  # printed alike, ranked alike
        ("ResNet-18", "RigL"): [3],
        ("ResNet-18", "DSR"): [2],
        ("ResNet-18", "GGR"): [1],
        ("VGG16", "SET"): [1],
        ("VGG16", "GGR"): [1],
    }


def test_a_mean_over_survivors_is_not_ranked():
    runs = [replace(CIFAR, method=method, seed=seed) for method in ("set", "ggr") for seed in (0, 1)]
    (table,) = tables.table1([record(run, value) for run, value in zip(runs, (0.5, 0.5, 0.9, 0.01), strict=True)])
    assert ranks(table) == {("ResNet-18", "SET"): [1], ("ResNet-18", "GGR"): [None]}
    assert "† failed seeds, excluded from the mean." in table.caption


def test_a_method_without_rivals_has_no_rank_in_a_column():
    runs = {CIFAR: 0.6, replace(CIFAR, sparsity=0.99): 0.5, replace(CIFAR, method="set"): 0.4}
    (table,) = tables.table1([record(run, accuracy) for run, accuracy in runs.items()])
    assert ranks(table) == {("ResNet-18", "SET"): [2, None], ("ResNet-18", "GGR"): [1, None]}


def test_sparsities_of_narrow_networks_name_the_one_that_they_match_where_all_layers_are_narrower():
    vgg, mobilenet = (replace(CIFAR, model=model, width=0.25, sparsity=0.96) for model in ("vgg16", "mobilenet-v2"))
    for runs, heading, exception in (
        ([vgg], "s=0.96 (matches 0.99)", False),
        ([vgg, mobilenet], "s=0.96 (matches 0.99)", True),
        ([mobilenet], "s=0.96", False),
    ):
        (table,) = tables.table1([record(run, 0.5) for run in runs])
        assert table.columns[0][0] == heading
        assert ("Not so for MobileNetV2 x0.25" in table.caption) == exception


def test_a_column_in_which_layers_start_dense_matches_nothing():
    made = record(replace(CIFAR, model="resnet-18", width=0.25, sparsity=0.6), 0.5)
    assert tables.table1([made])[0].columns[0][0] == "s=0.6 (matches 0.9)"
    layers = made.result["layers"]
    layers[0]["initial_nnz"] = prod(layers[0]["shape"])  # as in many networks at full width too
    assert tables.table1([made])[0].columns[0][0] == "s=0.6 (matches 0.9)"
    layers[1]["initial_nnz"] = prod(layers[1]["shape"])
    assert tables.table1([made])[0].columns[0][0] == "s=0.6"


def test_the_caption_says_how_many_seeds_cells_have_that_give_no_n():
    runs = [replace(CIFAR, method=method, seed=seed) for method in ("set", "rigl", "ggr") for seed in range(3)]
    (table,) = tables.table1([record(run, 0.5) for run in runs])
    assert "over 3 seeds." in table.caption
    (table,) = tables.table1([record(run, 0.5) for run in runs if (run.method, run.seed) != ("ggr", 2)])
    assert "over 2 to 3 seeds, 3 where no n is given." in table.caption
    assert "(n=2)" in to_markdown(table)
