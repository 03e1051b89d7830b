"""Tables of the results page, from made-up runs whose numbers are known."""

import json
from dataclasses import replace

from tests.lab.made_up import ENVIRONMENT, record

from rewire.lab.experiments.registry import runs_of
from rewire.lab.experiments.studies import better
from rewire.lab.experiments.studies.transformers import NETWORKS
from rewire.lab.report.findings import Study
from rewire.lab.report.results_costs import costs_section, dense_section
from rewire.lab.report.results_sections import better_section, peer_section, recommendation, transformers_section
from rewire.lab.report.statistics import Interval
from rewire.lab.run import Run


def rows_of(section):
    return [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]


def test_seconds_of_different_processors_have_a_column_each():
    runs = [Run(data="cifar100", method=method, seed=seed) for method in ("set", "ggr", "dsr") for seed in range(2)]
    cpus = ["Quick", "Slow", "Slow", "Slow", "Quick", "Quick"]  # SET on both, GGR on one, DSR on the other
    seconds = [2.0, 9.0, 7.0, 8.0, 3.0, 5.0]
    records = []
    for run, cpu, each in zip(runs, cpus, seconds, strict=True):
        records.append(record(run, 0.5, environment=ENVIRONMENT | {"cpu": cpu}))
        for line in records[-1].metrics:
            line["cpu_seconds"] = each / run.epochs
    head, _, *rows = rows_of(costs_section(Study(records, runs)))
    assert head[-2:] == ["seconds, Quick", "seconds, Slow"]
    assert {row[1]: row[-2:] for row in rows} == {"SET": ["2", "9"], "GGR": ["·", "8"], "DSR": ["4", "·"]}


def test_a_change_of_ggr_on_digits_beside_the_same_change_on_cifar100():
    change = "share by gradient 0"
    arms = {
        better.BASE: 0.90,
        replace(better.BASE, **better.CHANGES[change]): 0.88,
        replace(better.BASE, fraction=0.2): 0.93,
        better.LARGE: 0.30,
        replace(better.LARGE, **better.ON_LARGE[change]): 0.34,
    }
    reached = {replace(run, seed=seed): value + 0.01 * seed for run, value in arms.items() for seed in range(3)}
    study = Study([record(run, value) for run, value in reached.items()], reached)
    rows = {row[0]: row[1:] for row in rows_of(better_section(study))}
    assert rows[change] == ["-2.00\\*", "·", "3", "+4.00", "·", "3"]
    assert rows["fraction 0.2"] == ["+3.00\\*", "·", "3", "·", "·", "·"]
    assert "ERK start" not in rows  # not a run of it is done


def test_rivals_on_cifar100_with_both_schedules():
    reached = {better.LARGE: 0.30, replace(better.LARGE, method="set"): 0.28}
    reached |= {replace(better.LARGE, every=391): 0.36, replace(better.LARGE, every=391, method="set"): 0.37}
    runs = {replace(run, seed=seed): value + 0.01 * seed for run, value in reached.items() for seed in range(3)}
    runs |= {replace(better.BASE, seed=seed): 0.9 for seed in range(3)}
    rows = rows_of(better_section(Study([record(run, value) for run, value in runs.items()], runs)))
    four, once = "four times an epoch", "once an epoch"
    shown = {(row[0], row[1]): row[2:5] for row in rows if row[1] in (four, once)}
    assert {key: (cells[0], cells[2]) for key, cells in shown.items()} == {
        ("GGR", four): ("31.00", "·"),
        ("SET", four): ("29.00", "-2.00"),
        ("GGR", once): ("37.00", "·"),
        ("SET", once): ("38.00", "+1.00"),
    }


def test_recommended_is_what_is_better_on_the_digits_and_on_cifar100():
    better_there, worse, unclear = Interval(2, 1, 3, 3), Interval(-2, -3, -1, 3), Interval(1, -1, 3, 3)
    text = recommendation({"a": better_there, "b": worse, "c": unclear, "d": None})
    outcomes = "a (better on CIFAR-100 too); b (worse on CIFAR-100); c (no clear difference on CIFAR-100)"
    assert f"{outcomes}; d (not tried on CIFAR-100)" in text
    assert text.endswith("**a**.")
    assert recommendation({"b": worse}).endswith("**nothing**.")
    assert "none is recommended" in recommendation({})


def test_changes_that_are_made_on_cifar100_are_changes_and_have_runs():
    assert set(better.ON_LARGE) <= set(better.CHANGES)
    planned = set(runs_of("evidence", "workstation"))
    for seed in range(3):
        assert replace(better.LARGE, seed=seed) in planned
        assert all(replace(better.LARGE, seed=seed, **change) in planned for change in better.ON_LARGE.values())


def test_a_network_and_its_dense_version_are_compared_over_the_seeds_that_both_have():
    dense = Run(data="cifar100", method="dense", sparsity=0.0)
    sparse = Run(data="cifar100", method="ggr", start="erk")
    reached = {replace(sparse, seed=seed): (0.40, 0.50, 0.90)[seed] for seed in range(3)}
    reached |= {replace(dense, seed=seed): (0.60, 0.55)[seed] for seed in range(2)}
    study = Study([record(run, value) for run, value in reached.items()], reached)
    ((_, _, accuracy, gap, _, seeds, *_),) = rows_of(dense_section(study))[2:]
    assert (accuracy, gap, seeds) == ("45.00", "-12.50", "2")  # the third seed has no dense run
    alone = Study([record(run, value) for run, value in reached.items() if run.seed == 2], reached)
    assert "outstanding" in dense_section(alone)


def test_a_configuration_of_another_recipe_is_in_no_row_of_costs():
    runs = [Run(data="cifar100", method="ggr", every=every, seed=seed) for every in (98, 49) for seed in range(2)]
    rows = rows_of(costs_section(Study([record(run, 0.5) for run in runs], runs)))[2:]
    assert [row[6] for row in rows] == ["2"]


def test_transformers_by_accuracy_and_by_loss():
    network = NETWORKS["demo"][0]
    reached = {("ggr", 0): (0.50, 2.0), ("ggr", 1): (0.54, 1.9), ("rigl", 0): (0.49, 2.2), ("rigl", 1): (0.51, 2.0)}
    records = []
    for (method, seed), (accuracy, loss) in reached.items():
        records.append(record(replace(network, method=method, sparsity=0.9, start="erk", seed=seed), accuracy))
        records[-1].metrics[-1]["test_loss"] = loss
    plan = [one.run for one in records]
    rows = rows_of(transformers_section(Study(records, plan), "demo"))
    assert [row[-3:] for row in rows if row[1:3] == ["GGR", "90 %"]] == [["52.00", "1.950", "2"]]
    ((_, _, gap, _, loss_gap, _, seeds),) = [row for row in rows if len(row) == 7 and row[1] == "90 %"]
    assert (gap, loss_gap, seeds) == ("+2.00", "-0.150", "2")
    records[0].metrics[-1]["test_loss"] = None  # it diverged
    rows = rows_of(transformers_section(Study(records, plan), "demo"))
    assert [row[-3:] for row in rows if row[1:3] == ["GGR", "90 %"]] == [["52.00", "1.900", "2"]]


def peer_lines(arms):
    run = Run(model="vgg16", method="rigl").to_dict()
    return [
        json.dumps({"arm": arm, "run": run | {"seed": seed}, "accuracy": 0.5, "cpu_seconds_per_epoch": 1.0, "nnz": 9})
        for arm, seeds in arms.items()
        for seed in seeds
    ]


def test_a_peer_is_compared_over_the_seeds_that_both_have(tmp_path):
    file = tmp_path / "peer.jsonl"
    for arms, sentence in [
        ({"peer": (1, 2), "ours": (1, 2)}, "ours minus peer: +0.00 points"),
        ({"peer": (1,), "ours": (2,)}, "Ours is outstanding"),
        ({"peer": (1,)}, "Ours is outstanding"),
        ({}, "Undecided"),
    ]:
        file.write_text("\n".join(peer_lines(arms)))
        assert sentence in peer_section(file)
