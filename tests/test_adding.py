"""Adding is one place: a part, a method, a data set, a network, an experiment and a table, all from outside."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import rewire
from rewire.core import Signal
from rewire.lab import data, experiments, models
from rewire.lab.experiments.registry import EXPERIMENTS, runs_of
from rewire.lab.report.cells import Cell, Table
from rewire.lab.report.pictures import FIGURES, register_figure
from rewire.lab.report.registry import TABLES, register_table
from rewire.lab.report.report import write_report
from rewire.lab.results import folder_of, read_records
from rewire.lab.run import Run
from rewire.lab.training.train import train
from rewire.parts import Lowest


@dataclass(frozen=True)
class LowestOdd:
    """A part: the lowest weights at odd positions go first."""

    exact: ClassVar[bool] = True

    @property
    def signals(self):
        return frozenset({Signal.WEIGHT})

    def most(self, layers, n):
        return Lowest().most(layers, n)

    def __call__(self, layers, n, ctx):
        chosen = []
        for layer, k in zip(layers, self.most(layers, n), strict=True):
            even = layer.active() % 2 == 0
            order = torch.argsort(layer.read(Signal.WEIGHT).abs() + even * 1e3, stable=True)
            chosen.append(layer.active()[order[:k]].sort().values)
        return chosen


def odd(*, density: float, every: int, until: int, fraction: float = 0.1, start="erk"):
    """A method: RigL with the part above."""
    return rewire.Method(
        **vars(rewire.rigl(density=density, every=every, until=until, fraction=fraction, start=start))
        | {"drop": LowestOdd()}
    )


def stripes():
    """A data set: arrays."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 96)
    images = rng.integers(0, 60, (96, 8, 8)) + 150 * labels[:, None, None] * (np.arange(8) % 2)
    images = images.astype(np.uint8)
    return (images[:64], labels[:64]), (images[64:], labels[64:])


def two_layers(*, classes, image, width=1.0):
    """A network: a function of classes and image."""
    hidden = round(32 * width)
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(image)), hidden), nn.ReLU(), nn.Linear(hidden, classes))


def compare():
    """An experiment: a function that returns runs."""
    return experiments.grid(
        data="stripes",
        model="two-layers",
        method=["rigl", "odd", "dense"],
        sparsity=0.8,
        epochs=2,
        batch_size=16,
        lr=0.05,
    )


def longest(records):
    """A table: a function from records."""
    runs = [one for one in records if one.result]
    rows = tuple(((one.run.label,), (Cell(f"{one.result['seconds']:.1f}", one.result["seconds"]),)) for one in runs)
    return [Table("longest", "Seconds by run", "Seconds of training.", ("Run",), (("Time", "s"),), rows)]


def scatter(subject):
    """A figure: a function of what a network's figures are about."""
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().scatter([1], [1])
    return [subject.picture("scatter", "One point", "A point.", figure)]


@pytest.fixture
def added():
    rewire.METHODS.register("odd", label="Odd", colours=("#123456", "#654321"), marker="h")(odd)
    data.register_function("stripes")(stripes)
    models.register("two-layers", label="Two layers")(two_layers)
    experiments.register("odd-ones", tables="longest")(compare)
    register_table("longest", order=7)(longest)
    register_figure("scatter")(scatter)
    yield
    rewire.METHODS.unregister("odd")
    del data.DATASETS["stripes"], models.MODELS["two-layers"], EXPERIMENTS["odd-ones"]
    del TABLES["longest"], FIGURES["scatter"]


def test_everything_is_added_from_outside_and_goes_through_the_lab(added, tmp_path):
    runs = runs_of("odd-ones")
    assert [run.method for run in runs] == ["rigl", "odd", "dense"]
    for run in runs:
        train(run, folder_of(tmp_path, run))
    records = read_records(tmp_path)
    results = {one.run.method: one.result for one in records}
    assert results["odd"]["accuracy"] > 0.6
    assert results["odd"]["nnz"] == results["rigl"]["nnz"] == round(0.2 * (64 * 32 + 32 * 2))
    assert len(results["odd"]["rewirings"]) == 1
    page = write_report(tmp_path).read_text()
    assert "Two layers" in page
    assert ">Odd<" in page
    assert "var(--c123456, #123456)" in page  # the method's own colour
    assert "Seconds by run" in page
    assert "One point" in page
    assert (tmp_path / "report" / "longest.csv").exists()


def test_the_code_is_part_of_the_identity(added):
    run = Run(data="stripes", model="two-layers", method="odd")
    assert {one.role: one.name for one in run.code} == {"data": "stripes", "model": "two-layers", "method": "odd"}
    assert all(one.path == __file__ for one in run.code)
    assert run.id != Run.from_dict({k: v for k, v in run.to_dict().items() if k != "code"}).id


def test_a_name_is_given_once(added):
    with pytest.raises(ValueError, match="there is a method 'ggr' already"):
        rewire.METHODS.register("ggr")(odd)
    with pytest.raises(ValueError, match="there is a network 'mlp' already"):
        models.register("mlp")(two_layers)
