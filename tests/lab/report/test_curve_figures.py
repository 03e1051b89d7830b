"""Curves of the results page, worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from tests.lab.made_up import record

from rewire.lab.experiments.studies.recovery import starved
from rewire.lab.report import curve_figures
from rewire.lab.report.curve_figures import losses_around_rewirings, losses_figure, recoveries, recovery_figure
from rewire.lab.report.findings import Study
from rewire.lab.run import DENSE, Run

GPT = Run(data="stdlib", model="gpt", method="ggr", every=2, until=0.5, epochs=2, record_losses=True)
NETWORK = Run(model="vgg-small", epochs=2)


def with_losses(run, *epochs):
    made = record(run, 0.5)
    for line, losses in zip(made.metrics, epochs, strict=True):
        line["losses"] = losses
    return made


def test_the_excess_around_rewirings_by_hand(monkeypatch):
    """Rewirings follow steps 2 and 4 of 8, and two steps before and after them count."""
    monkeypatch.setattr(curve_figures, "AROUND", 2)
    dense = with_losses(replace(GPT, method=DENSE, every=None, sparsity=0.0), [4, 4, 4, 4], [3, 3, 3, 3])
    sparse = with_losses(GPT, [5, 5, 8, 7], [5, 4, 3, 3])
    # Above dense: 1 1 4 3 | 2 1 0 0. Around step 2: 1 1 4 3, less 1. Around step 4: 4 3 2 1, less 3.5.
    assert losses_around_rewirings(sparse, dense).tolist() == [0.25, -0.25, 0.75, -0.25]


def test_a_dense_training_has_no_rewirings_to_look_around():
    dense = with_losses(replace(GPT, method=DENSE, every=None, sparsity=0.0), [4] * 50, [3] * 50)
    assert losses_around_rewirings(dense, dense) is None


def test_losses_are_drawn_only_beside_a_dense_run_of_the_same_seed():
    epochs = [np.linspace(5, 4, 80).tolist(), np.linspace(4, 3, 80).tolist()]
    sparse = with_losses(replace(GPT, every=40), *epochs)
    for seed, drawn in ((0, True), (1, False)):
        dense = with_losses(replace(GPT, method=DENSE, every=None, sparsity=0.0, seed=seed), *epochs)
        figure = losses_figure(Study([sparse, dense], []))
        assert (figure is not None) == drawn
        if figure is not None:
            assert [line.get_label() for line in figure.axes[0].lines][:1] == ["GGR 97 %"]


def test_the_weights_of_the_starved_layer_epoch_by_epoch():
    runs = starved(NETWORK, 0.97, range(2))
    records = [record(run, 0.5) for run in runs]
    for one in records:  # five layers: the third is the one that starves
        one.result["layers"][2]["initial_nnz"] = 7 + one.run.seed
        for epoch, line in enumerate(one.metrics):
            line["nnz"][2] = 20 * (epoch + 1) + one.run.seed
    ((title, curves),) = recoveries(Study(records, runs)).items()
    assert title == "VGG-small on digits, 97 %"
    assert set(curves) == {"RigL, starved start", "DSR, starved start", "GGR, starved start", "GGR, uniform start"}
    for curve in curves.values():
        assert [one.tolist() for one in curve] == [[7, 20, 40], [8, 21, 41]]


@pytest.mark.parametrize("figure", [losses_figure, recovery_figure])
def test_nothing_is_drawn_without_such_runs(figure):
    assert figure(Study([record(NETWORK, 0.5)], [NETWORK])) is None
