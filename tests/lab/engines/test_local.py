"""The local engine: killed workers and killed sweeps lose and repeat nothing."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rewire.lab.engines.local import run_all
from rewire.lab.results import read_metrics, read_record
from rewire.lab.run import Run
from rewire.lab.training.train import train
from rewire.lab.training.trainer import Place

QUICK = Run(model="mlp", epochs=2, batch_size=64, limit=200)


def go(runs, tmp_path, workers=2, listen=lambda run, event: None):
    return run_all(runs, tmp_path, workers=workers, place=Place(), listen=listen)


def worker_of(folder):
    """The process that holds the lock of a run."""
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].endswith(f":{(folder / 'lock').stat().st_ino}"):
            return int(fields[4])
    raise AssertionError("nobody works on it")


def test_all_runs_are_carried_out_and_a_failure_does_not_stop_the_rest(tmp_path):
    runs = [replace(QUICK, seed=seed) for seed in range(3)]
    broken = replace(QUICK, model="vgg16")  # refused for 8x8 images when it is built
    heard = []
    outcome = go(
        [runs[0], broken, *runs[1:]], tmp_path, listen=lambda run, event: heard.append((run.id, event["kind"]))
    )
    assert [outcome[run.id] for run in runs] == [None, None, None]
    assert "vgg16" in outcome[broken.id]
    assert read_record(tmp_path / broken.folder_name).status == "failed"
    assert "Traceback" in read_record(tmp_path / broken.folder_name).error
    for run in runs:
        assert heard.count((run.id, "epoch")) == 2
        assert heard.count((run.id, "done")) == 1


def test_a_killed_worker_is_replaced_and_its_run_goes_on_from_its_checkpoint(tmp_path):
    run = replace(QUICK, epochs=8)
    epochs = []

    def listen(run, event):
        if event["kind"] == "epoch":
            epochs.append(event["epoch"])
            if event["epoch"] == 3 and epochs.count(3) == 1:
                os.kill(worker_of(tmp_path / run.folder_name), signal.SIGKILL)

    assert go([run], tmp_path, workers=1, listen=listen) == {run.id: None}
    # An epoch may be saved and yet not be announced, as the worker is killed in between; the record has them all.
    assert [line["epoch"] for line in read_metrics(tmp_path / run.folder_name)] == list(range(1, 9))
    assert epochs[:3] == [1, 2, 3]
    assert epochs[-1] == 8
    assert len(epochs) <= 9 + 1  # at most what was under way is done twice
    assert read_record(tmp_path / run.folder_name).result["loss"] == train(run, tmp_path / "undisturbed")["loss"]


def test_a_run_that_kills_every_worker_is_given_up(tmp_path):
    run = replace(QUICK, epochs=500)  # long enough to be still under way when the event of an epoch arrives

    def listen(run, event):
        if event["kind"] == "epoch":
            os.kill(worker_of(tmp_path / run.folder_name), signal.SIGKILL)

    outcome = go(
        [run, replace(QUICK, epochs=1)], tmp_path, workers=1, listen=lambda r, e: listen(r, e) if r == run else None
    )
    assert "killed 3 times" in outcome[run.id]
    assert outcome[replace(QUICK, epochs=1).id] is None


def test_no_workers():
    with pytest.raises(ValueError, match="workers must be at least 1, not 0"):
        go([QUICK], None, workers=0)


SWEEP = """
import sys
from dataclasses import replace
from pathlib import Path
from rewire.lab.engines.local import run_all
from rewire.lab.run import Run
from rewire.lab.training.trainer import Place
if __name__ == "__main__":
    runs = [Run(model="mlp", epochs=6, batch_size=64, limit=200, seed=seed) for seed in range(4)]
    def say(run, event):
        if event["kind"] in ("epoch", "done"):
            print(run.seed, event["kind"], event.get("epoch"), flush=True)

    run_all(runs, Path(sys.argv[1]), workers=2, place=Place(), listen=say)
"""


def start_sweep(tmp_path):
    script = tmp_path / "sweep.py"
    script.write_text(SWEEP)
    return subprocess.Popen([sys.executable, str(script), str(tmp_path / "runs")], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_is_killed_or_stopped_goes_on_with_the_same_command(tmp_path, how):
    lines = []
    with start_sweep(tmp_path) as first:
        for line in first.stdout:
            lines.append(line.split())
            if len(lines) == 5:
                first.send_signal(how)
    done = {folder.name for folder in (tmp_path / "runs").iterdir() if (folder / "result.json").exists()}
    stamps = {name: (tmp_path / "runs" / name / "result.json").stat().st_mtime_ns for name in done}
    with start_sweep(tmp_path) as second:
        again = [line.split() for line in second.stdout]
    assert second.returncode == 0
    epochs = [(seed, epoch) for seed, kind, epoch in lines + again if kind == "epoch"]
    assert len(epochs) - len(set(epochs)) <= 2  # at most one epoch a worker is repeated
    for name, stamp in stamps.items():
        assert (tmp_path / "runs" / name / "result.json").stat().st_mtime_ns == stamp
    folders = list((tmp_path / "runs").iterdir())
    assert len(folders) == 4
    for folder in folders:
        record = read_record(folder)
        assert record.status == "done"
        assert [line["epoch"] for line in record.metrics] == list(range(1, 7))
        assert not [path for path in folder.iterdir() if path.name.startswith(".")]
