"""Files of an earlier version are read and gone on with: bit for bit on the processor that wrote them, else closely."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.compatibility import write_files as written

import rewire
from rewire.distributed import load_latest
from rewire.io import load_csr
from rewire.lab.cli.main import main

FILES = Path(__file__).parent / "files"
EXACT = written.processor() == json.loads((FILES / "processor.json").read_text())

NEWBORNS = "ggr-packed-adamw"  # Adam's second moments of newborn weights start in another way since

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*was written by an earlier version and has no checksum"),
]


def assert_same(found, recorded, *, exact=EXACT, near=1e-6):
    """Values, types and shapes; without ``exact``, numbers may differ by rounding, but no topology and no count."""
    found, recorded = written.leaves(found), written.leaves(recorded)
    assert found.keys() == recorded.keys()
    for path, value in recorded.items():
        if isinstance(value, torch.Tensor):
            apart = near if value.is_floating_point() and not exact else 0
            torch.testing.assert_close(found[path], value, rtol=apart, atol=apart)
        elif isinstance(value, float) and not exact:
            assert found[path] == pytest.approx(value, rel=near, abs=near), path
        else:
            assert found[path] == value, path


def without_newborns(seen):
    """Which layers have newborn weights was not recorded then."""
    seen["common"]["rewirer"].pop("newborns", None)
    return seen


def saved(name):
    return torch.load(FILES / f"{name}.pt", weights_only=True)


def resumed(file, store):
    """Freshly built, with other weights and another topology, until it loads."""
    method, _, optimizer = written.TRAININGS[file]
    objects, states = written.build(method, store, optimizer, seed=5), saved(file)
    for one, name in zip(objects, ("model", "optimizer", "rewirer"), strict=True):
        one.load_state_dict(states[name])
    return objects


@pytest.fixture
def command(monkeypatch, capsys):
    """The command ``rewire``: what it prints."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        main([*map(str, words)])
        return capsys.readouterr().out

    return run


# --- the three state_dicts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", written.TRAININGS)
def test_a_training_is_loaded_as_it_was_saved(file):
    recorded, objects = saved(file), resumed(file, written.TRAININGS[file][1])
    for one, name in zip(objects, ("model", "optimizer", "rewirer"), strict=True):
        assert_same(one.state_dict(), recorded[name], exact=True)
    assert [one.step for one in objects[2].history] == [5]
    assert_same(written.outputs(objects[0], written.batch(1000)[0]), recorded["outputs"])


@pytest.mark.parametrize("file", [file for file in written.TRAININGS if file != NEWBORNS])
def test_a_training_goes_on_as_if_it_had_not_stopped(file):
    recorded, objects = saved(file), resumed(file, written.TRAININGS[file][1])
    assert_same(written.train(*objects[:2], written.STOP, written.END), recorded["losses"])
    assert_same(without_newborns(written.seen(*objects)), recorded["continued"])
    assert [one.step for one in objects[2].history] == [5, 10, 15]


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_under_adam_the_same_training_goes_on_until_weights_are_born(store):
    recorded, objects = saved(NEWBORNS), resumed(NEWBORNS, store)
    steps = 10 - written.STOP  # the next rewiring follows step 10
    exact = {} if store == recorded["rewirer"]["store"] else {"exact": False, "near": 1e-9}
    losses = written.train(*objects[:2], written.STOP, written.STOP + steps)
    assert_same(losses, recorded["losses"][:steps], **exact)
    assert [one.step for one in objects[2].history] == [5, 10]


@pytest.mark.parametrize(("file", "store"), [("rigl-masked-sgd", "packed")])
def test_each_store_goes_on_with_what_the_other_one_wrote(file, store):
    recorded, objects = saved(file), resumed(file, store)
    assert recorded["rewirer"]["store"] != store
    losses = written.train(*objects[:2], written.STOP, written.END)
    assert_same(losses, recorded["losses"], exact=False, near=1e-9)
    assert_same(
        without_newborns(written.seen(*objects))["common"], recorded["continued"]["common"], exact=False, near=1e-9
    )


def test_a_sharded_checkpoint_is_loaded_and_gone_on_with():
    recorded = saved("sharded/expected")
    model, optimizer, rewirer = written.build(*written.SHARDED, seed=5, every=1)
    loaded = load_latest(FILES / "sharded", model=model, optimizer=optimizer, rewirer=rewirer)
    assert (loaded.step, loaded.extra) == (written.STOP, written.EXTRA)
    states = [one.state_dict() for one in (model, optimizer, rewirer)]
    states[2].pop("newborns", None)  # were not recorded then
    digest = written.digest_of(states)
    assert (digest, rewirer.step) == (recorded["digest"], written.STOP)
    assert_same(written.outputs(model, written.batch(1000)[0]), recorded["outputs"])
    assert_same(written.train(model, optimizer, written.STOP, written.END), recorded["losses"])
    assert_same(without_newborns(written.seen(model, optimizer, rewirer)), recorded["continued"])


# --- networks for other tools -----------------------------------------------------------------------------------------

NETWORKS = {"sparse.safetensors": "masked", "small.safetensors": "masked", "small.pt": "packed"}  # of which run


def source(file):
    path = FILES / "networks" / file
    return torch.load(path, weights_only=True) if path.suffix == ".pt" else path


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("file", NETWORKS)
def test_a_network_is_read_bit_by_bit_and_computes_the_same(file, packed):
    recorded, model = saved("networks/expected")[file], written.lab_network(NETWORKS[file])
    state = rewire.load_sparse(source(file), model, packed=packed)
    assert written.digest_of(state) == recorded["digest"]
    found = written.outputs(model, written.images())
    assert_same(found, recorded["outputs"], exact=EXACT and not packed, near=1e-5)


def test_a_shrunk_network_that_was_written_packed_is_the_one_that_was_not():
    assert_same(rewire.load_sparse(source("small-packed.pt")), rewire.load_sparse(source("small.pt")), exact=True)


def test_the_dense_and_the_csr_file_hold_the_weights_of_the_sparse_one():
    sparse, dense = rewire.load_sparse(source("sparse.safetensors")), rewire.load_sparse(source("dense.safetensors"))
    masks = {name: mask for name, mask in sparse.items() if name.endswith("_mask")}
    assert_same(dense, {name: one for name, one in sparse.items() if name not in masks}, exact=True)
    matrices = load_csr(FILES / "networks" / "csr.npz")
    assert {f"{name}_mask" for name in matrices} == masks.keys()
    for name, matrix in matrices.items():
        assert torch.equal(matrix.to_dense(), sparse[name].flatten(1))
        assert matrix.values().numel() == masks[f"{name}_mask"].sum()


# --- runs of the lab --------------------------------------------------------------------------------------------------


def run_files(folder):
    """What a run left, without what differs from time to time."""
    result = json.loads((folder / "result.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for one in (result, *lines):
        del one["seconds"]
        one.pop("cpu_seconds", None)  # written since
    del result["environment"]
    return {"result": result, "metrics": lines, "topology": load_file(folder / "topology.safetensors")}


def accuracy(folder):
    return f"{100 * json.loads((folder / 'result.json').read_text())['accuracy']:.2f}"


def test_runs_are_listed_under_the_ids_that_they_had(command):
    told = command("runs", FILES / "runs")
    assert "2 done, 0 running, 0 failed, 2 planned" in told
    for name in written.RUNS:
        known = json.loads((FILES / "runs" / "finished" / name / "run.json").read_text())["id"]
        rows = [line for line in told.splitlines() if known[:6] in line]  # as many as tell runs apart
        assert ["done" in row and "3/3" in row for row in rows] == [True, False]
        assert ["planned" in row and "1/3" in row for row in rows] == [False, True]


def test_a_report_is_made_of_them(tmp_path, command):
    folder = shutil.copytree(FILES / "runs" / "finished", tmp_path / "finished")
    told, page = command("report", folder), (folder / "report.html").read_text()
    for name in written.RUNS:
        assert accuracy(folder / name) in told
        assert accuracy(folder / name) in page


@pytest.mark.parametrize("name", written.RUNS)
def test_inspect_tells_the_same_about_a_run(name, command):
    found = json.loads(command("inspect", FILES / "runs" / "finished" / name, "--json"))
    assert found == json.loads((FILES / "runs" / f"inspect-{name}.json").read_text())


@pytest.mark.parametrize("name", written.RUNS)
def test_an_interrupted_run_goes_on_to_the_same_result(tmp_path, name, command):
    folder = shutil.copytree(FILES / "runs" / "interrupted" / name, tmp_path / name)
    command("train", "--resume", folder)
    # Losses are summed in float32.
    assert_same(run_files(folder), run_files(FILES / "runs" / "finished" / name), near=1e-5)


def test_a_finished_run_is_not_repeated(tmp_path, command):
    folder = shutil.copytree(FILES / "runs" / "finished" / "masked", tmp_path / "masked")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert f"{accuracy(folder)}%" in command("train", "--resume", folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
