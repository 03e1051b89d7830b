"""What a dry run of a sweep prints: configurations, seeds and costs, so that a person can read it."""

import re

import pytest

from rewire.lab.cli import planning
from rewire.lab.cli.main import main
from rewire.lab.experiments.registry import runs_of
from rewire.lab.results import folder_of, write_json
from rewire.lab.run import Run

EXPERIMENT = """
from rewire.lab import grid

def compare():
    same = dict(model="mlp", method=["ggr", "rigl"], sparsity=[0.9, 0.97], seed=range(3))
    return [*grid(epochs=4, **same), *grid(epochs=8, lr=0.02, **same)]
"""


@pytest.fixture
def compare(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "exp.py").write_text(EXPERIMENT)
    return "exp.py:compare"


def test_configurations_stand_once_with_their_seeds(compare, capsys):
    main(["sweep", compare, "--dry-run"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line.startswith("mlp")] == [
        "mlp digits erk epochs 4",
        "mlp digits erk epochs 8 lr 0.02",
    ]
    rows = [line.split() for line in lines if re.match(r"ggr|rigl", line)]
    assert rows == 2 * [["ggr", "90%", "3"], ["ggr", "97%", "3"], ["rigl", "90%", "3"], ["rigl", "97%", "3"]]
    assert "24 runs of 8 configurations, 144 epochs" in lines
    assert not any("hours" in line for line in lines)


def test_costs_add_up_to_core_hours(compare, capsys, monkeypatch):
    def by_epochs(runs, place):
        return {run.id: 900.0 * run.epochs for run in runs}

    monkeypatch.setattr(planning, "seconds_of", by_epochs)
    monkeypatch.setattr(planning.torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    main(["sweep", compare, "--dry-run", "--measure", "--workers", "4"])  # two threads a run
    text = capsys.readouterr().out
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines())
    rows = [line.split() for line in text.splitlines() if re.match(r" +(ggr|rigl)", line)]
    assert [row[2:] for row in rows] == 4 * [["3", "3,600", "6.00"]] + 4 * [["3", "7,200", "12.00"]]
    assert "24 runs of 8 configurations, 144 epochs, 72.0 core-hours" in text


def test_what_is_done_is_counted(compare, tmp_path, capsys):
    done = Run(model="mlp", sparsity=0.9, epochs=4, seed=1)
    write_json(folder_of(tmp_path / "runs" / "compare", done) / "result.json", {})
    main(["sweep", compare, "--dry-run"])
    text = capsys.readouterr().out
    first = next(line.split() for line in text.splitlines() if line.strip().startswith("ggr"))
    assert first == ["ggr", "90%", "3", "1"]
    assert "1 run is done; left: 23 runs, 140 epochs" in text


def test_the_largest_study_fits_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    runs = runs_of("evidence", "workstation")
    main(["sweep", "evidence", "--scale", "workstation", "--dry-run"])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line.rstrip()) <= 80 for line in lines)
    seeds = [int(found[1]) for line in lines if (found := re.match(r"  \S.* (\d+)$", line))]
    assert sum(seeds) == len(runs)
    assert len(lines) < 1.5 * len(seeds)
    assert "None" not in "".join(lines)
