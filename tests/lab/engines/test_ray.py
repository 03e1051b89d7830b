"""The Ray engine: the same results as the local one, killed workers, Ctrl-C, and folders that a node does not see."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rewire.lab.engines import ray as engine
from rewire.lab.engines import work
from rewire.lab.engines.ray import Resources, run_all
from rewire.lab.results import read_record
from rewire.lab.run import Run
from rewire.lab.training.train import train
from rewire.lab.training.trainer import Place

QUICK = Run(model="mlp", epochs=2, batch_size=64, limit=200)


@pytest.fixture(scope="module")
def cluster():
    """One small Ray for all tests of this file: it takes seconds to start."""
    with engine._connected(Resources(workers=2)) as ray:
        yield ray


def go(runs, directory, listen=lambda run, event: None, **resources):
    return run_all(runs, directory, resources=Resources(**resources), place=Place(), listen=listen)


OWN = """
import rewire
def mine(*, density, every, until):
    return rewire.set_(density=density, every=every, until=until)
"""


@pytest.mark.usefixtures("cluster")
def test_a_method_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    run = replace(QUICK, method=f"{tmp_path / 'mine.py'}:mine")
    assert go([run], tmp_path / "runs") == {run.id: None}
    record = read_record(tmp_path / "runs" / run.folder_name)
    assert record.run == run
    assert record.result["loss"] == train(replace(QUICK, method="set"), tmp_path / "set")["loss"]


@pytest.mark.usefixtures("cluster")
def test_all_runs_are_carried_out_and_a_failure_does_not_stop_the_rest(tmp_path):
    runs = [replace(QUICK, seed=seed) for seed in range(2)]
    broken = replace(QUICK, model="vgg16")  # refused for 8x8 images when it is built
    heard = []
    outcome = go([runs[0], broken, runs[1]], tmp_path, lambda run, event: heard.append((run.id, event["kind"])))
    assert [outcome[run.id] for run in runs] == [None, None]
    assert "vgg16" in outcome[broken.id]
    assert "Traceback" in read_record(tmp_path / broken.folder_name).error
    for run in runs:
        assert [kind for name, kind in heard if name == run.id and kind != "step"] == [
            "begin",
            "epoch",
            "epoch",
            "done",
        ]
        assert (
            read_record(tmp_path / run.folder_name).result["loss"]
            == train(run, tmp_path / "here" / run.folder_name)["loss"]
        )
    assert not list(tmp_path.glob(".seen-by-all*"))


@pytest.mark.usefixtures("cluster")
def test_the_run_of_a_killed_worker_goes_on_from_its_checkpoint(tmp_path):
    run, epochs, kinds, pids = replace(QUICK, epochs=6), [], [], []

    def listen(_run, event):
        kinds.append(event["kind"])
        if event["kind"] == "begin":
            pids.append(event["pid"])
        if event["kind"] == "epoch":
            epochs.append(event["epoch"])
            if event["epoch"] == 3 and len(pids) == 1:
                os.kill(pids[0], signal.SIGKILL)

    assert go([run], tmp_path, listen) == {run.id: None}
    assert kinds.count("lost") == 1
    assert len(set(pids)) == 2
    assert sorted(set(epochs)) == list(range(1, 7))
    assert 1 not in epochs[3:]  # it did not begin anew
    undisturbed = train(run, tmp_path / "undisturbed")
    assert read_record(tmp_path / run.folder_name).result["loss"] == undisturbed["loss"]
    topologies = [tmp_path / name / "topology.safetensors" for name in (run.folder_name, "undisturbed")]
    assert topologies[0].read_bytes() == topologies[1].read_bytes()


@pytest.mark.usefixtures("cluster")
def test_a_run_that_loses_its_workers_too_often_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "ATTEMPTS", 1)

    def listen(_run, event):
        if event["kind"] == "begin":
            os.kill(event["pid"], signal.SIGKILL)

    outcome = go([QUICK], tmp_path, listen)
    assert "killed 1 times" in outcome[QUICK.id]


@pytest.mark.usefixtures("cluster")
def test_a_folder_that_a_node_does_not_see(tmp_path, monkeypatch):
    def unmarked(directory):
        mark = tmp_path / "elsewhere" / "mark"
        return engine.contextmanager(lambda: iter([mark]))()

    monkeypatch.setattr(engine, "_marker", unmarked)
    outcome = go([QUICK], tmp_path)
    assert "give --out a folder that every node of the cluster sees" in outcome[QUICK.id]
    assert not (tmp_path / QUICK.id).exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workers": 0}, "workers must be at least 1, not 0"),
        ({"cpus": 0}, "cpus must be greater than 0, not 0"),
        ({"gpus": -1}, "gpus must not be negative, and is -1"),
        ({"cpus": 1.5}, "cpus must be a fraction below 1 or a whole number, not 1.5"),
    ],
)
def test_resources_that_cannot_be(wrong, message):
    with pytest.raises(ValueError, match=message):
        Resources(**wrong)


def test_without_ray_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("rewire._extras.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"this needs ray.*pip install 'rewire\[ray\]'"):
        go([QUICK], tmp_path)


def processes(marked):
    """All that live and inherited this environment variable."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if marked.encode() in (path / "environ").read_bytes() and "Z" not in (path / "stat").read_text().split()[2]:
                found.append(int(path.name))
        except OSError:
            continue  # it has ended meanwhile, or is not ours
    return found


SWEEP = """
import signal, sys
from pathlib import Path
from rewire.lab.engines.ray import Resources, run_all
from rewire.lab.run import Run
from rewire.lab.training.trainer import Place
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
runs = [Run(model="mlp", epochs=200, batch_size=64, limit=200, seed=seed) for seed in range(3)]
say = lambda run, event: print(event["kind"], flush=True)
run_all(runs, Path(sys.argv[1]), resources=Resources(workers=1), place=Place(), listen=say)
"""


def test_a_stopped_sweep_leaves_no_process_and_can_go_on(tmp_path):
    mark = f"REWIRE_TEST_MARK={os.getpid()}-{time.time_ns()}"
    name, value = mark.split("=")
    environment = {key: item for key, item in os.environ.items() if not key.startswith("RAY_")} | {name: value}
    line = [sys.executable, "-c", SWEEP, str(tmp_path)]
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sweep:
        try:
            next(said for said in sweep.stdout if said.strip() == "epoch")
            sweep.send_signal(signal.SIGINT)
            _, complaint = sweep.communicate(timeout=60)
        finally:
            sweep.kill()
    assert complaint.splitlines()[-1] == "KeyboardInterrupt"
    wait_for(lambda: not processes(mark), seconds=30)
    assert not list(tmp_path.glob(".seen-by-all*"))
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    record = read_record(folder)
    assert record.status == "planned"
    assert 0 < len(record.metrics) < 200


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)
