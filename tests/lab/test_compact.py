"""Many runs in one file, and a run repeated from it."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rewire.lab.cli import sweeping
from rewire.lab.cli.main import main
from rewire.lab.compact import collect, from_line, read_file, read_runs, to_line
from rewire.lab.repeat import pick, repeat
from rewire.lab.results import folder_of, read_record
from rewire.lab.run import Run
from rewire.lab.training.train import train
from rewire.lab.training.trainer import Place

RUNS = [
    Run(model="mlp", epochs=3, limit=100, evaluate_every=2, method="ggr", seed=seed, record_losses=bool(seed))
    for seed in range(2)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    for run in RUNS:
        train(run, folder_of(directory, run))
    return directory


def test_a_line_holds_what_reports_read(folder):
    stored = read_record(folder_of(folder, RUNS[1]))
    again = from_line(json.loads(json.dumps(to_line(stored))), folder)
    assert again.run == stored.run
    for old, new in zip(stored.metrics, again.metrics, strict=True):
        assert {**old, "seconds": 0, "cpu_seconds": 0} == {**new, "seconds": 0, "cpu_seconds": 0}
    left_out = {"rewirings", "command", "seconds"}
    assert stored.result is not None
    assert again.result is not None
    for name, value in stored.result.items():
        assert name in left_out or again.result[name] == value


def test_metrics_name_only_the_epochs_that_were_evaluated(folder):
    stored = read_record(folder_of(folder, RUNS[0]))
    assert ["accuracy" in line for line in stored.metrics] == [False, True, True]
    assert "losses" not in stored.metrics[0]
    assert len(read_record(folder_of(folder, RUNS[1])).metrics[0]["losses"]) == 1


def test_a_file_is_the_same_whenever_it_is_written(folder, tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        assert collect(folder, tmp_path / name) == 2
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert {one.run for one in read_file(tmp_path / "a.jsonl")} == set(RUNS)


def test_a_folder_without_epochs_or_layers_is_named(folder, tmp_path):
    half = shutil.copytree(folder_of(folder, RUNS[0]), tmp_path / "runs" / "half")
    (half / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="half lacks epochs or parts of its result .*: copy it again"):
        collect(half.parent, tmp_path / "a.jsonl")
    shutil.copy(folder_of(folder, RUNS[0]) / "metrics.jsonl", half)
    (half / "result.json").write_text('{"accuracy": 0.5}')
    with pytest.raises(ValueError, match="half lacks epochs or parts of its result .*: copy it again"):
        collect(half.parent, tmp_path / "a.jsonl")


@pytest.mark.parametrize("part", ["nnz", "layers", "run"])
def test_a_line_with_an_empty_part_is_named(folder, tmp_path, part):
    line = to_line(read_record(folder_of(folder, RUNS[0])))
    {"nnz": line["metrics"]["nnz"], "layers": line["result"]["layers"], "run": line["run"]}[part].clear()
    line["run"] = line["run"] or None
    (tmp_path / "a.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match="line 1 of .*a.jsonl is not a run"):
        read_file(tmp_path / "a.jsonl")


def test_adding_keeps_the_runs_that_the_file_holds(folder, tmp_path):
    file, part = tmp_path / "runs.jsonl", tmp_path / "part"
    shutil.copytree(folder_of(folder, RUNS[0]), folder_of(part, RUNS[0]))
    assert collect(part, file, add=True) == 1  # there is no file yet
    assert collect(folder, file, add=True) == 2
    both = file.read_bytes()
    main(["collect", str(part), "-o", str(file), "--add"])
    assert file.read_bytes() == both
    main(["collect", str(part), "-o", str(file)])
    assert [one.run for one in read_file(file)] == [RUNS[0]]


def test_a_sweep_leaves_out_what_is_finished_elsewhere(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweeping, "runs_of", lambda name, scale: RUNS)
    shutil.copytree(folder_of(folder, RUNS[0]), folder_of(tmp_path / "part", RUNS[0]))
    command = ["sweep", "demo", "--workers", "1", "--out", str(tmp_path / "out"), "--skip"]
    main([*command, str(tmp_path / "part")])
    assert f"1 of 2 runs are finished in {tmp_path / 'part'}" in capsys.readouterr().out.replace("\n", "")
    assert not folder_of(tmp_path / "out", RUNS[0]).exists()
    assert read_record(folder_of(tmp_path / "out", RUNS[1])).status == "done"
    with pytest.raises(SystemExit):
        main([*command, str(folder)])
    assert "all 2 runs are finished in" in capsys.readouterr().err


def test_a_damaged_file_is_named_with_its_line(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"run": 1}\n')
    with pytest.raises(ValueError, match=r"line 1 of .*bad.jsonl is not a run"):
        read_file(tmp_path / "bad.jsonl")


def test_a_run_repeated_from_its_line_gives_the_same_bits(folder, tmp_path, capsys):
    collect(folder, tmp_path / "runs.jsonl")
    main(["repeat", str(tmp_path / "runs.jsonl"), "--id", RUNS[0].id])
    assert "the same numbers in all 3 epochs" in capsys.readouterr().out
    record = pick(read_runs(tmp_path / "runs.jsonl"), RUNS[0].id)
    other = replace(record, run=replace(record.run, seed=7))
    found = repeat(other, Place())
    assert any("loss of epoch 1 is" in one for one in found)
    assert any("of layer" in one for one in found)


def test_a_repeated_run_that_differs_names_what_is_different_here(folder, tmp_path, capsys):
    line = to_line(read_record(folder_of(folder, RUNS[0])))
    line["metrics"]["loss"][0] += 1
    line["result"]["environment"]["cpu"] = "Abacus"
    (tmp_path / "elsewhere.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(SystemExit):
        main(["repeat", str(tmp_path / "elsewhere.jsonl")])
    error = capsys.readouterr().err
    assert "loss of epoch 1 is" in error
    assert re.search(r"Another machine may round differently: cpu is .* instead of Abacus\n$", error)


def test_a_run_is_picked_by_its_id_though_two_experiments_share_it(folder):
    records = [read_record(folder_of(folder, run)) for run in (*RUNS, RUNS[0])]
    assert pick(records, RUNS[0].id).run == RUNS[0]
    with pytest.raises(ValueError, match="2 finished runs have an id that begins with ''"):
        pick(records, "")
    with pytest.raises(ValueError, match="0 finished runs have an id that begins with 'x'"):
        pick(records, "x")


def test_without_a_finished_run_there_is_nothing_to_repeat(folder):
    planned = replace(read_record(folder_of(folder, RUNS[0])), result=None)
    with pytest.raises(ValueError, match="none of these runs is finished"):
        pick([planned], None)


def test_a_run_that_an_early_version_began_has_seconds_of_its_processor_in_some_epochs_only(folder):
    stored = read_record(folder_of(folder, RUNS[0]))
    del stored.metrics[0]["cpu_seconds"]
    again = from_line(json.loads(json.dumps(to_line(stored))), folder)
    assert ["cpu_seconds" in line for line in again.metrics] == [False, True, True]


def test_a_diverged_run_is_repeated_like_any_other(folder, monkeypatch):
    stored = read_record(folder_of(folder, RUNS[0]))

    def diverged(run, place_of_run, *rest):
        shutil.copytree(folder_of(folder, RUNS[0]), place_of_run)
        return stored.result | {"loss": math.nan}  # in the file it is null

    monkeypatch.setattr("rewire.lab.repeat.train", diverged)
    assert repeat(stored, Place()) == []


def test_a_report_of_a_file(folder, tmp_path):
    main(["collect", str(folder), "-o", str(tmp_path / "runs.jsonl")])
    main(["report", str(tmp_path / "runs.jsonl"), "--out", str(tmp_path / "made")])
    assert (tmp_path / "made" / "report.html").exists()
    assert Path(tmp_path / "made" / "report" / "table1-digits.md").exists()
