import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rewire
from rewire.lab.run import Run
from rewire.lab.training import checkpoints
from rewire.lab.training.recipe import learning_rate, method_of
from rewire.lab.training.train import train
from rewire.lab.training.trainer import Place, Trainer

QUICK = Run(model="mlp", epochs=3, batch_size=64, limit=300)


class StoppedError(Exception):
    pass


def stop_after(epochs):
    def report(event):
        if event["kind"] == "epoch" and event["epoch"] == epochs:
            raise StoppedError

    return report


def test_a_run_leaves_its_results(tmp_path):
    result = train(QUICK, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {
        "run.json",
        "metrics.jsonl",
        "checkpoint.safetensors",
        "topology.safetensors",
        "result.json",
        "lock",
    }
    assert result == json.loads((tmp_path / "result.json").read_text())
    assert result["nnz"] == round(0.03 * result["weights"]) == sum(layer["nnz"] for layer in result["layers"])
    assert 0 < result["flops"]["ratio"] < 0.2
    assert result["steps_per_epoch"] == 5
    assert [one["step"] for one in result["rewirings"]] == [5]
    assert [json.loads(line)["epoch"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3]


def test_a_finished_run_is_not_repeated(tmp_path):
    first = train(QUICK, tmp_path)
    events = []
    assert train(QUICK, tmp_path, report=events.append) == first
    assert events == []


def test_results_and_checkpoints_of_another_run_are_refused(tmp_path):
    train(QUICK, tmp_path)
    other = replace(QUICK, seed=5)
    with pytest.raises(ValueError, match=r"run.json is of another run \(.* seed 0, id"):
        train(other, tmp_path)
    (tmp_path / "run.json").unlink()
    for run in (other, QUICK):  # nothing says whose result it is
        with pytest.raises(ValueError, match=r"result.json is of an unknown run \(no run.json names it\): give"):
            train(run, tmp_path)
    (tmp_path / "result.json").unlink()
    with pytest.raises(ValueError, match=r"checkpoint.safetensors is of another run \(.* seed 0, id"):
        train(other, tmp_path)
    assert not (tmp_path / "run.json").exists()
    assert train(QUICK, tmp_path)["accuracy"] > 0  # its own checkpoint


def test_a_checkpoint_that_does_not_name_its_run_is_gone_on_with(tmp_path):
    with pytest.raises(StoppedError):
        train(QUICK, tmp_path, report=stop_after(1))
    state = checkpoints.load(tmp_path / "checkpoint.safetensors")
    del state["run"]
    checkpoints.save(tmp_path / "checkpoint.safetensors", state)
    assert train(QUICK, tmp_path)["accuracy"] > 0


@pytest.mark.parametrize("method", ["ggr", "dsr", "snfs", "dense"])
def test_interrupted_and_resumed_is_bit_identical(tmp_path, method):
    run = replace(QUICK, method=method, model="vgg-small", width=0.25)
    train(run, tmp_path / "whole")
    with pytest.raises(StoppedError):
        train(run, tmp_path / "parts", report=stop_after(1))
    with pytest.raises(StoppedError):
        train(run, tmp_path / "parts", report=stop_after(2))
    assert "StoppedError" in json.loads((tmp_path / "parts" / "error.json").read_text())["traceback"]
    train(run, tmp_path / "parts")
    assert not (tmp_path / "parts" / "error.json").exists()
    a, b = (checkpoints.load(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(a["model"][key], b["model"][key]) for key in a["model"])
    assert all(torch.equal(a["explored"][name], b["explored"][name]) for name in a["explored"] or ())
    states = [tree["optimizer"]["state"] for tree in (a, b)]
    assert all(torch.equal(states[0][i]["momentum_buffer"], states[1][i]["momentum_buffer"]) for i in states[0])
    assert [line["accuracy"] for line in a["metrics"]] == [line["accuracy"] for line in b["metrics"]]
    assert [line["loss"] for line in a["metrics"]] == [line["loss"] for line in b["metrics"]]


def test_a_checkpoint_that_did_not_count_what_was_explored_is_gone_on_with(tmp_path):
    run = replace(QUICK, every=2)
    with pytest.raises(StoppedError):
        train(run, tmp_path, report=stop_after(1))
    state = checkpoints.load(tmp_path / "checkpoint.safetensors")
    del state["explored"]
    checkpoints.save(tmp_path / "checkpoint.safetensors", state)
    result = train(run, tmp_path)
    assert result["explored"] is None
    assert {layer["explored"] for layer in result["layers"]} == {None}


def test_what_a_run_explored(tmp_path):
    moving = train(replace(QUICK, every=2, sparsity=0.9), tmp_path / "moving")
    fixed = train(replace(QUICK, method="static", sparsity=0.9), tmp_path / "fixed")
    dense = train(replace(QUICK, method="dense", epochs=1), tmp_path / "dense")
    assert moving["explored"] == sum(layer["explored"] for layer in moving["layers"]) > moving["nnz"]
    assert fixed["explored"] == fixed["nnz"]
    assert dense["explored"] == dense["weights"]
    assert fixed["flops"]["training_ratio"] == pytest.approx(fixed["flops"]["ratio"])
    assert moving["flops"]["training_ratio"] > fixed["flops"]["training_ratio"]
    assert dense["flops"]["training_ratio"] == 1


def test_the_same_seed_gives_the_same_and_another_another(tmp_path):
    losses = [train(run, tmp_path / str(i))["loss"] for i, run in enumerate((QUICK, QUICK, replace(QUICK, seed=1)))]
    assert losses[0] == losses[1] != losses[2]


def test_the_recipe_of_the_paper():
    run = Run(epochs=200)
    steps = 10
    assert learning_rate(run, 0, steps) == pytest.approx(0.01)  # the first of ten warm-up steps
    assert learning_rate(run, 9, steps) == pytest.approx(0.1)
    at_epoch = [learning_rate(run, epoch * steps, steps) for epoch in (59, 60, 119, 120, 159, 160, 199)]
    assert at_epoch == pytest.approx([0.1, 0.02, 0.02, 0.004, 0.004, 0.0008, 0.0008])
    method = method_of(run, steps)
    assert method.schedule(10) == pytest.approx(0.1)  # the beginning of epoch 1
    assert method.schedule(1000) == pytest.approx(0.0)  # half of the training
    assert method.schedule(1010) is None


def test_options_reach_the_method():
    run = Run(method="ggr", growth="random", scope="network", fraction=0.3, every=7, sparsity=0.9)
    method = method_of(run, 10)
    assert method.grow == rewire.parts.AtRandom()
    assert method.drop == rewire.parts.Lowest(scope="network")
    assert method.schedule(7) == pytest.approx(0.3)
    assert method.density(0) == pytest.approx(0.1)
    assert method_of(Run(method="gmp"), 10).density(0) == 1.0
    assert method_of(Run(method="deepr"), 10).schedule(1) == 1.0  # at every step, to the end
    assert method_of(Run(method="deepr", epochs=2), 10).schedule(20) == 1.0


@pytest.mark.parametrize("method", list(rewire.METHODS))
def test_every_method_trains(tmp_path, method):
    result = train(replace(QUICK, method=method, epochs=2, sparsity=0.9), tmp_path)
    if method == "srigl":  # whole rounds of one weight for every neuron
        assert 0.09 < result["density"] <= 0.1
    else:
        assert result["density"] == pytest.approx(0.1, abs=1e-4)


def test_bfloat16(tmp_path):
    assert train(replace(QUICK, precision="bfloat16", epochs=1), tmp_path)["loss"] > 0


def test_it_learns():
    trainer = Trainer(replace(QUICK, sparsity=0.8, limit=None, start="connected-erk", init="fan_in"), Place())
    before, _ = trainer.accuracy()
    for epoch in range(3):
        trainer.train_epoch(epoch, lambda event: None)
    after, _ = trainer.accuracy()
    assert before < 0.3
    assert after > 0.8


def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = replace(QUICK, epochs=2)
    train(run, tmp_path, Place(tensorboard=True))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert {"loss", "accuracy", "lr"} <= set(events.Tags()["scalars"])
    assert [point.step for point in events.Scalars("accuracy")] == [1, 2]
    assert any(tag.startswith("density/") for tag in events.Tags()["scalars"])


def test_a_missing_data_set_is_explained(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cifar-100-binary|cifar100"):
        train(Run(data="cifar100", model="mlp"), tmp_path / "run", Place(data_dir=tmp_path))


@pytest.mark.skipif(not os.environ.get("REWIRE_DATA"), reason="REWIRE_DATA is not set: no real data here")
def test_real_cifar100(tmp_path):
    run = Run(
        data="cifar100", model="resnet-18", width=0.125, epochs=2, limit=1500, sparsity=0.9, batch_size=50, every=10
    )
    place = Place(data_dir=Path(os.environ["REWIRE_DATA"]))
    result = train(run, tmp_path / "whole", place)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert lines[1]["loss"] < lines[0]["loss"] < 4.8
    assert result["nnz"] == round(0.1 * result["weights"])
    assert {sum(line["nnz"]) for line in lines} == {result["nnz"]}
    with pytest.raises(StoppedError):
        train(run, tmp_path / "parts", place, report=stop_after(1))
    assert train(run, tmp_path / "parts", place)["loss"] == result["loss"]


def test_the_packed_store_leaves_the_same_results_and_resumes(tmp_path):
    run = replace(QUICK, model="vgg-small", width=0.25, store="packed")
    whole = train(run, tmp_path / "whole")
    masked = train(replace(run, store="masked"), tmp_path / "masked")
    assert [layer["nnz"] for layer in whole["layers"]] == [layer["nnz"] for layer in masked["layers"]]
    assert whole["flops"] == masked["flops"]
    with pytest.raises(StoppedError):
        train(run, tmp_path / "parts", report=stop_after(1))
    assert train(run, tmp_path / "parts")["accuracy"] == whole["accuracy"]
    files = [(tmp_path / part / "topology.safetensors").read_bytes() for part in ("whole", "parts")]
    assert files[0] == files[1]


def test_the_cosine_falls_from_the_warm_up_to_nothing():
    run, steps = Run(epochs=5, warmup=1, lr=0.4, decay="cosine"), 10
    rates = [learning_rate(run, step, steps) for step in (9, 10, 30, 49)]
    assert rates[:3] == pytest.approx([0.4, 0.4, 0.2])  # half of the cosine is half of the rate
    assert 0 < rates[3] < 0.001


def test_adamw_resumes_bit_for_bit_and_refuses_momentum(tmp_path):
    run = replace(QUICK, optimizer="adamw", decay="cosine", lr=1e-3, evaluate_every=2)
    train(run, tmp_path / "whole")
    with pytest.raises(StoppedError):
        train(run, tmp_path / "parts", report=stop_after(1))
    train(run, tmp_path / "parts")
    a, b = (checkpoints.load(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(a["model"][key], b["model"][key]) for key in a["model"])
    assert "exp_avg" in a["optimizer"]["state"][0]
    with pytest.raises(ValueError, match="momentum 0.5 is an option of SGD"):
        replace(run, momentum=0.5)
