"""The figures of what methods reach and of what training costs: which runs are in them."""

from tests.lab.made_up import ENVIRONMENT, record

from rewire.lab.report.claims import CLAIMS
from rewire.lab.report.findings import CONFIRMED, UNDECIDED, Answer, Effect, Study
from rewire.lab.report.results_figures import (
    accuracies,
    accuracy_figure,
    claims_figure,
    costs_figure,
    dense_accuracies,
)
from rewire.lab.report.statistics import Interval
from rewire.lab.run import DENSE, Run

METHODS, STARTS, LABELS = ("set", "rigl", "dsr", "ggr"), ("erk", "uniform"), ("SET", "RigL", "DSR", "GGR")


def study_of(runs, value=lambda run: 0.5):
    return Study([record(run, value(run)) for run in runs], runs)


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


def test_a_start_is_left_out_until_every_method_has_it_twice():
    runs = panel()
    assert len(accuracies(study_of(runs))) == 1
    (cells,) = accuracies(study_of(runs[:-1])).values()  # GGR has one seed from the uniform start
    assert set(cells) == {(label, "erk") for label in LABELS}
    assert not accuracies(study_of([run for run in runs if run.method != "dsr"]))
    assert accuracy_figure(study_of([run for run in runs if run.seed == 0])) is None
    plan = panel(seeds=range(5))
    for seeds, shown in ((2, 0), (3, 1)):
        done = [record(run, 0.5) for run in plan if run.seed < seeds]
        assert len(accuracies(Study(done, plan))) == shown


def test_costs_are_of_the_network_with_most_configurations_beside_dense_ones_of_its_kind():
    sparse = panel(model="vgg16", width=0.25)
    dense = [Run(data="cifar100", model="vgg16", width=width, method=DENSE, sparsity=0.0) for width in (0.25, 0.05)]
    others = panel(model="resnet-18", width=0.25)[:4] + panel(model="vgg16", width=1.0)[:4]
    left, _ = costs_figure(study_of(sparse + dense + others)).axes
    assert len(left.lines) == len(METHODS) * len(STARTS) + len(dense)
    assert {text.get_text() for text in left.texts} == {"x0.25", "x0.05"}


def test_no_frame_is_left_empty():
    runs = [run for sparsity in (0.8, 0.9, 0.96, 0.97) for run in panel(sparsity=sparsity)]
    axes = accuracy_figure(study_of(runs)).axes  # two rows of three
    assert [bool(one.lines) for one in axes] == [one.axison for one in axes] == [True] * 4 + [False] * 2


def test_the_dense_network_is_a_line_in_the_panels_of_its_width():
    narrow, full = panel(model="vgg16", width=0.25, sparsity=0.96), panel(model="vgg16", sparsity=0.96)
    dense = [Run(data="cifar100", model="vgg16", width=0.25, method=DENSE, sparsity=0.0, seed=seed) for seed in (0, 1)]
    study = study_of(narrow + full + dense, lambda run: 0.6 + 0.02 * run.seed if run.is_dense else 0.5)
    ((title, reached),) = dense_accuracies(study).items()
    assert (title, round(reached, 6)) == ("VGG16 x0.25, 96 % sparse", 61.0)
    with_line, without = accuracy_figure(study).axes[:2]
    assert len(with_line.lines) == len(without.lines) + 1
    assert 61.0 in [round(float(line.get_ydata()[0]), 6) for line in with_line.lines]


def test_effects_of_claims_are_drawn_above_their_bounds_and_large_ones_apart():
    def answer(*effects, verdict=CONFIRMED):
        return Answer(effects, 1, 1, verdict)

    above_its_bound = Effect("above its bound", Interval(1.0, -0.4, 2.4, 3), above=-0.5)
    open_effect, large = Effect("open", Interval(1.0, -1.0, 3.0, 3)), Effect("large", Interval(30.0, 20.0, 40.0, 3))
    undecided, other_unit = Effect("undecided", large.interval), Effect("share", large.interval, unit="%")
    answers = [answer(above_its_bound, open_effect), answer(large, other_unit), answer(undecided, verdict=UNDECIDED)]
    small, apart = claims_figure(list(zip(CLAIMS, answers, strict=False))).axes
    assert [label.get_text() for label in small.get_yticklabels()] == ["a  above its bound (n = 3)", "a  open (n = 3)"]
    assert [label.get_text() for label in apart.get_yticklabels()] == ["b  large (n = 3)"]
    means = [line for line in small.lines if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in means] == [1.5, 1.0]
    assert [line.get_markerfacecolor() == "white" for line in means] == [False, True]


def test_a_seed_that_was_carried_out_in_both_stores_counts_once():
    packed = panel(store="packed")
    masked = panel(seeds=[0])
    assert accuracies(study_of(packed + masked)) == accuracies(study_of(packed))


def test_other_variants_are_not_mixed_in():
    runs = panel()
    others = [
        Run(data="cifar100", method="ggr", every=7),
        Run(data="cifar100", method="set", fraction=0.3),
        Run(data="cifar100", method="rigl", until=0.75),
        Run(data="cifar100", method="dsr", init="fan_in"),
        Run(data="cifar100", method="ggr", epochs=3),
        Run(data="digits", method="ggr"),
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


def test_seconds_are_of_the_processor_with_most_runs():
    runs = panel(model="vgg16", width=0.25)
    quick, slow = ({**ENVIRONMENT, "cpu": name} for name in ("Quick <1>", "Slow <2>"))
    elsewhere = runs[0], *runs[2:4]  # one seed of the first configuration, both of the second
    records = [record(run, 0.5, environment=slow if run in elsewhere else quick) for run in runs]
    for one in records:
        for line in one.metrics:
            line["cpu_seconds"] = 9.0 if one.result["environment"] is slow else 2.0
    left, right = costs_figure(Study(records, runs)).axes
    assert right.get_xlabel().endswith("Quick <1>")
    assert [line.get_xdata()[0] for line in right.lines] == [2.0 * runs[0].epochs] * (len(left.lines) - 1)
