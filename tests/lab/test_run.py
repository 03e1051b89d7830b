import dataclasses
import hashlib
import json
import shlex
from dataclasses import replace

import pytest

from rewire.lab.cli import main as cli
from rewire.lab.cli.arguments import Train
from rewire.lab.experiments import EXPERIMENTS, runs_of
from rewire.lab.run import Run


def test_the_id_names_the_content():
    assert Run().id == Run(method="ggr").id
    assert len({Run(seed=0).id, Run(seed=1).id, Run(sparsity=0.9).id, Run(lr=0.2).id}) == 4
    assert len(Run().id) == 12


KNOWN_IDS = {  # of the version before runs could name code of their own: folders of results are found by them
    Run(): "60c73fe23565",
    Run(method="rigl", every=7, fraction=0.3, init="fan_in", seed=4): "5d8bdc6a6458",
    Run(method="dense", sparsity=0.0): "d8ad1e355613",
}
KNOWN_EXPERIMENTS = {
    ("demo", "demo"): "891d37238b63",
    ("table1", "paper"): "f5ddea591f99",
    ("table3", "demo"): "d9b37dfb4650",
    ("table4", "laptop"): "ad281efbb88e",
    ("drop", "paper"): "dcee6c837691",
    ("stores", "demo"): "351be11fd817",
}


@pytest.mark.parametrize(("run", "known"), KNOWN_IDS.items())
def test_ids_stay_what_they_were(run, known):
    assert run.id == known


@pytest.mark.parametrize(("experiment", "known"), KNOWN_EXPERIMENTS.items())
def test_experiments_stay_what_they_were(experiment, known):
    ids = " ".join(run.id for run in runs_of(*experiment))
    assert hashlib.sha256(ids.encode()).hexdigest()[:12] == known


def test_a_folder_name_that_people_can_read():
    assert Run().folder_name == "vgg-small_digits_ggr_97_erk_s0_60c73f"
    assert Run(method="dense", sparsity=0.0, seed=3).folder_name.startswith("vgg-small_digits_dense_s3_")
    assert Run(growth="random", sparsity=0.995).folder_name.startswith("vgg-small_digits_ggr-random_99.5_erk_s0_")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "rigl", "growth": "random"}, "growth 'random' is an option that rigl does not take"),
        ({"method": "static", "fraction": 0.2}, "fraction 0.2 is an option that static does not use"),
        ({"method": "static", "every": 5}, "every 5 is an option that static does not use"),
        ({"method": "deepr", "until": 0.3}, "until 0.3 .* deepr decides itself"),
        ({"method": "deepr", "fraction": 0.3}, "fraction 0.3 is an option that deepr does not use"),
        ({"method": "gmp", "start": "uniform"}, "start 'uniform' .* gmp decides itself"),
        ({"method": "dense", "sparsity": 0.5}, "sparsity 0.5 is about sparse networks, and this run is dense"),
        ({"method": "dense", "store": "packed"}, "store 'packed' is about sparse networks"),
        (
            {"method": "static", "scope": "network"},
            "scope 'network' is about dropping the lowest weights, which static",
        ),
    ],
)
def test_options_without_effect_are_refused(change, message):
    with pytest.raises(ValueError, match=message + ".* would have no effect: leave --"):
        Run(**change)


def test_a_run_survives_json():
    run = Run(method="rigl", every=7, fraction=0.3, init="fan_in")
    again = Run.from_dict(json.loads(json.dumps(run.to_dict())))
    assert again == run
    assert again.id == run.id


def test_a_run_survives_the_command_line():
    run = Run(method="rigl", every=7, fraction=0.3, init="fan_in", batch_size=32, seed=4)
    words = shlex.split(shlex.join(["train", *run.arguments()]))
    assert cli.parse(Train, words).run == run


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "cifar10"}, "unknown data set 'cifar10'. Did you mean 'cifar100'"),
        ({"model": "resnet18"}, "unknown network 'resnet18'. Did you mean 'resnet-18'"),
        ({"method": "grg"}, "unknown method 'grg'. Did you mean 'ggr'"),
        ({"start": "unifrom"}, "unknown start 'unifrom'. Did you mean 'uniform'"),
        ({"growth": "mixed"}, "unknown growth 'mixed'. Did you mean 'mix'"),
        ({"store": "maskd"}, "unknown store 'maskd'"),
        ({"store": "packed", "method": "snfs"}, "snfs reads momentum, which the packed store cannot supply: use store"),
        ({"precision": "float8"}, "unknown precision 'float8'. Did you mean 'float64'"),
        ({"init": "xavier"}, "unknown init 'xavier'"),
        ({"sparsity": 1.5}, r"sparsity is the share of weights that do not exist, in \[0, 1\), not 1.5"),
        ({"sparsity": 1.0}, "sparsity is the share"),
        ({"epochs": 0}, "epochs must be greater than 0, not 0"),
        ({"every": 0}, "every must be greater than 0, not 0"),
        ({"warmup": -1}, "warmup must not be negative"),
        ({"fraction": 1.5}, "fraction is a share"),
        ({"method": "dsr", "scope": "network"}, "scope 'network' is about dropping the lowest weights, which dsr"),
        ({"batch_size": -1}, "batch_size must be greater than 0"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        Run(**change)


def test_unknown_fields_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"a run has no field 'sparcity'\. Did you mean 'sparsity'"):
        Run.from_dict({"sparcity": 0.9})


@pytest.mark.parametrize("scale", ["demo", "laptop", "workstation", "paper"])
@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_experiments_are_runs_without_repetition(name, scale):
    runs = runs_of(name, scale if EXPERIMENTS[name].has_scales else None)
    assert len({run.id for run in runs}) == len(runs) > 0


def test_the_demo_is_what_it_says():
    runs = runs_of("demo", "demo")
    combinations = {(r.method, r.sparsity, r.start, r.seed) for r in runs if r.method != "dense"}
    expected = {
        (m, s, start, seed)
        for m in ("ggr", "set", "rigl", "dsr")
        for s in (0.97, 0.99)
        for start in ("erk", "uniform")
        for seed in (0, 1)
    }
    assert combinations == expected
    assert sum(r.method == "dense" for r in runs) == 2


@pytest.mark.parametrize(("scale", "seeds"), [("demo", 5), ("laptop", 3)])
def test_the_stores_are_compared_on_the_same_runs(scale, seeds):
    runs = runs_of("stores", scale)
    masked, packed = ([r for r in runs if r.store == store] for store in ("masked", "packed"))
    assert [replace(run, store="packed") for run in masked] == packed
    assert {run.seed for run in packed} == set(range(seeds))


def test_the_paper_is_as_published():
    runs = runs_of("table1", "paper")
    assert {(r.data, r.model, r.epochs) for r in runs} == {
        ("cifar100", "mobilenet-v2", 100),
        ("cifar100", "resnet-18", 100),
        ("tiny-imagenet", "mobilenet-v2", 200),
        ("tiny-imagenet", "vgg16", 200),
    }
    recipe = {(r.lr, r.momentum, r.weight_decay, r.batch_size, r.warmup, r.width, r.limit) for r in runs}
    assert recipe == {(0.1, 0.9, 5e-4, 128, 1, 1.0, None)}


def test_unknown_experiment():
    with pytest.raises(ValueError, match=r"unknown experiment 'table2'\. Did you mean 'table"):
        runs_of("table2", "demo")
    with pytest.raises(ValueError, match="unknown scale 'huge'"):
        runs_of("table1", "huge")


def test_every_field_is_explained_on_the_command_line(capsys):
    with pytest.raises(SystemExit):
        cli.parse(Train, ["train", "--help"])
    text = capsys.readouterr().out
    assert "--code" not in text  # it is found by the names
    for field in [field for field in dataclasses.fields(Run) if field.name != "code"]:
        assert f"--{field.name.replace('_', '-')}" in text
