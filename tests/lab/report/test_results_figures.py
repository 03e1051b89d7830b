"""The figure of what methods reach: which runs are in it."""

from tests.lab.made_up import record

from rewire.lab.report.findings import Study
from rewire.lab.report.results_figures import accuracies, accuracy_figure
from rewire.lab.run import DENSE, Run

METHODS, STARTS, LABELS = ("set", "rigl", "dsr", "ggr"), ("erk", "uniform"), ("SET", "RigL", "DSR", "GGR")


def study_of(runs, value=lambda run: 0.5):
    return Study([record(run, value(run)) for run in runs], runs, data="cifar100")


def panel(seeds=(0, 1), **settings):
    settings = {"data": "cifar100", **settings}
    return [Run(method=m, start=start, seed=seed, **settings) for m in METHODS for start in STARTS for seed in seeds]


def test_a_panel_has_each_method_from_each_start_one_value_a_seed():
    skill = {"set": 0.30, "rigl": 0.35, "dsr": 0.40, "ggr": 0.45}
    runs = panel(model="vgg16", width=0.25, sparsity=0.96)
    study = study_of(runs, lambda run: skill[run.method] + 0.01 * run.seed - 0.05 * (run.start == "uniform"))
    (title,) = found = accuracies(study)
    assert title == "VGG16 x0.25, 96 % sparse"
    assert set(found[title]) == {(label, start) for label in LABELS for start in STARTS}
    assert [round(value, 6) for value in found[title]["GGR", "erk"]] == [45.0, 46.0]
    assert [round(value, 6) for value in found[title]["SET", "uniform"]] == [25.0, 26.0]


def test_a_network_is_left_out_until_it_has_every_cell_twice():
    runs = panel()
    assert len(accuracies(study_of(runs))) == 1
    assert not accuracies(study_of(runs[:-1]))  # the last cell has one seed
    assert not accuracies(study_of([run for run in runs if run.method != "dsr"]))
    assert accuracy_figure(study_of(runs[:-1])) is None


def test_other_variants_are_not_mixed_in():
    runs = panel()
    others = [
        Run(data="cifar100", method="ggr", growth="random", start="erk"),
        Run(data="cifar100", method="ggr", scope="network", start="erk"),
        Run(data="cifar100", method="ggr", start="connected-erk"),
        Run(data="cifar100", method="set_rigl", start="erk"),
        Run(data="cifar100", method=DENSE, sparsity=0.0),
    ]
    assert accuracies(study_of(runs + others)) == accuracies(study_of(runs))


def test_every_network_and_sparsity_has_a_panel():
    runs = panel(sparsity=0.97) + panel(sparsity=0.99) + panel(model="resnet-18", sparsity=0.97)
    study = study_of(runs)
    assert len(accuracies(study)) == 3
    assert len([axes for axes in accuracy_figure(study).axes if axes.axison]) == 3
