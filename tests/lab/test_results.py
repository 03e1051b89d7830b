import os
import subprocess
import sys

import pytest
import torch

from rewire.io.files import UNFINISHED
from rewire.lab.results import (
    BusyError,
    atomically,
    claim,
    read_record,
    read_records,
    write_json,
    write_metrics,
    write_with,
)
from rewire.lab.run import Run
from rewire.lab.training import checkpoints


def folder_of(tmp_path, **files):
    run = Run()
    write_json(tmp_path / run.id / "run.json", {"run": run.to_dict()})
    for name, content in files.items():
        write_json(tmp_path / run.id / f"{name}.json", content)
    return tmp_path / run.id


def test_a_file_appears_when_it_is_complete_or_not_at_all(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")

    def fail_half_way():
        with atomically(target) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert target.read_text() == "old"
    with pytest.raises(RuntimeError):
        write_with(target, lambda name: (_ for _ in ()).throw(RuntimeError()))
    assert os.listdir(tmp_path) == ["file"]


def test_the_state_of_a_run(tmp_path):
    folder = folder_of(tmp_path)
    assert read_record(folder).status == "planned"
    with claim(folder):
        assert read_record(folder).status == "running"
    write_json(folder / "error.json", {"traceback": "Boom"})
    assert read_record(folder).status == "failed"
    write_json(folder / "result.json", {"accuracy": 0.5})
    record = read_record(folder)
    assert record.status == "done"
    assert record.result == {"accuracy": 0.5}


def test_two_processes_do_not_work_on_one_run(tmp_path):
    with claim(tmp_path / "run"), pytest.raises(BusyError, match="another process works on"), claim(tmp_path / "run"):
        pass
    with claim(tmp_path / "run"):
        pass


def test_a_killed_process_leaves_no_lock_and_its_half_files_are_removed(tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from rewire.lab.results import atomically, claim
with claim(Path({str(tmp_path)!r})), atomically(Path({str(tmp_path / "result.json")!r})) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert any(name.startswith(UNFINISHED) for name in os.listdir(tmp_path))
    with claim(tmp_path):
        assert os.listdir(tmp_path) == ["lock"]


def test_folders_that_hold_no_runs(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere is not a folder of results: it does not exist"):
        read_records(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="holds no runs"):
        read_records(tmp_path)


@pytest.mark.parametrize("content", ["{", "[1]", ""])
def test_a_damaged_file_is_named(tmp_path, content):
    folder = folder_of(tmp_path)
    (folder / "result.json").write_text(content)
    with pytest.raises(ValueError, match=r"result.json .*remove its folder"):
        read_record(folder)


@pytest.mark.parametrize(
    "content",
    ["{}", '{"run": null}', '{"run": 3}', '{"run": {"name": "x"}}', '{"run": {"data": 3}}', '{"run": {"code": 3}}'],
)
def test_a_run_json_of_another_program_is_named(tmp_path, content):
    folder = folder_of(tmp_path)
    (folder / "run.json").write_text(content)
    with pytest.raises(ValueError, match=r"run.json is not of a run of this lab .*: move it or remove its folder"):
        read_records(folder)


def test_one_below_a_folder_of_runs_is_passed_over(tmp_path):
    folder = folder_of(tmp_path)
    write_json(tmp_path / "other" / "run.json", {"program": "other"})
    assert [record.folder for record in read_records(tmp_path)] == [folder]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", "{}"),
        ("result.json", '{"accuracy": "x"}'),
        ("error.json", "{}"),
        ("error.json", '{"traceback": 3}'),
        ("metrics.jsonl", "3\n"),
    ],
)
def test_files_without_what_they_must_have_are_named(tmp_path, name, content):
    folder = folder_of(tmp_path)
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{name} .*: remove it"):
        read_record(folder)


def test_what_json_does_not_have_becomes_null(tmp_path):
    folder = folder_of(tmp_path)
    write_metrics(folder, [{"loss": float("nan"), "nnz": [1, float("inf")]}])
    assert read_record(folder).metrics == [{"loss": None, "nnz": [1, None]}]
    (folder / "metrics.jsonl").write_text('{"loss": 1')
    with pytest.raises(ValueError, match=r"metrics.jsonl cannot be read .*remove its folder"):
        read_record(folder)


def test_metrics_are_json_lines(tmp_path):
    folder = folder_of(tmp_path)
    write_metrics(folder, [{"epoch": 1}, {"epoch": 2}])
    assert (folder / "metrics.jsonl").read_text().splitlines() == ['{"epoch": 1}', '{"epoch": 2}']
    assert read_record(folder).metrics == [{"epoch": 1}, {"epoch": 2}]


def test_checkpoints_keep_trees_of_tensors_and_plain_values(tmp_path):
    shared = torch.randn(2, 3)
    tree = {
        "a": [shared, shared.t(), None, True, 0.1],
        3: ("x", {0: torch.tensor(7), "mask": torch.tensor([True, False])}),
        "empty": {},
        "bf16": torch.ones(2, dtype=torch.bfloat16),
    }
    checkpoints.save(tmp_path / "c.safetensors", tree)
    again = checkpoints.load(tmp_path / "c.safetensors")
    assert torch.equal(again["a"][1], shared.t())
    assert again["a"][2:] == [None, True, 0.1]
    assert isinstance(again[3], tuple)
    assert again[3][1][0].item() == 7
    assert again[3][1]["mask"].tolist() == [True, False]
    assert again["empty"] == {}
    assert again["bf16"].dtype == torch.bfloat16


def test_damaged_checkpoints_are_refused_and_run_nothing(tmp_path):
    path = tmp_path / "c.safetensors"
    checkpoints.save(path, {"a": torch.ones(3)})
    whole = path.read_bytes()
    for content in (whole[:-4], whole[:10], b"", b"\x80\x04cos\nsystem\n", b"{}" * 50):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not a checkpoint of a run"):
            checkpoints.load(path)
    with pytest.raises(TypeError, match="cannot hold set"):
        checkpoints.save(path, {"a": {1}})
