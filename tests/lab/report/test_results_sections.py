"""Tables of the results page, from made-up runs whose numbers are known."""

from dataclasses import replace

from tests.lab.made_up import ENVIRONMENT, record

from rewire.lab.experiments.registry import runs_of
from rewire.lab.experiments.studies import better
from rewire.lab.report.findings import Study
from rewire.lab.report.results_sections import better_section, costs_section
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
    head, _, *rows = rows_of(costs_section(Study(records, runs, data="cifar100")))
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
    assert rows[change] == ["-2.00\\*", "-2.00 to -2.00", "3", "+4.00", "+4.00 to +4.00", "3"]
    assert rows["fraction 0.2"] == ["+3.00\\*", "+3.00 to +3.00", "3", "·", "·", "·"]
    assert "ERK start" not in rows  # not a run of it is done


def test_changes_that_are_made_on_cifar100_are_changes_and_have_runs():
    assert set(better.ON_LARGE) <= set(better.CHANGES)
    planned = set(runs_of("evidence", "workstation"))
    for seed in range(3):
        assert replace(better.LARGE, seed=seed) in planned
        assert all(replace(better.LARGE, seed=seed, **change) in planned for change in better.ON_LARGE.values())
