"""The rule of each claim on made-up runs, small enough to work out by hand: 60 is an accuracy of 60 %."""

from dataclasses import replace

import pytest
from tests.lab.made_up import record

from rewire.lab.experiments.variants import STARVED_METHODS
from rewire.lab.report import claim_rules as rules
from rewire.lab.report.findings import CONFIRMED, CONTRADICTED, NOT_CONFIRMED, UNDECIDED, Study
from rewire.lab.report.questions import LAYOUTS
from rewire.lab.report.results_page import main_effects
from rewire.lab.run import DENSE, Run

MLP = Run(model="mlp", sparsity=0.97, start="uniform")
CELL = {"model": "mlp", "sparsity": 0.97}
UNIFORM = {**CELL, "start": "uniform"}
METHODS = ("ggr", "dsr", "rigl", "set")


def judge(rule, reached, details=lambda run: {}, **layout):
    """The answer to runs that reached some accuracies; ``reached`` holds one for all of three seeds, or one a seed."""
    seeds = {run: values if isinstance(values, tuple) else (values,) * 3 for run, values in reached.items()}
    runs = {replace(run, seed=seed): value for run, values in seeds.items() for seed, value in enumerate(values)}
    study = Study([record(run, value / 100, **details(run)) for run, value in runs.items()], runs)
    return rule(study, replace(LAYOUTS["demo"], **layout))


def means(answer):
    return [round(one.interval.mean, 3) for one in answer.effects]


def by_method(*values):
    return {replace(MLP, method=name): value for name, value in zip(METHODS, values, strict=True)}


def test_a_each_rival_is_an_effect_and_the_worst_of_them_decides():
    found = judge(rules.a, by_method(60, 57, 58, 55), uniform=[UNIFORM])
    assert (means(found), found.verdict) == ([3, 2, 5], CONFIRMED)
    assert judge(rules.a, by_method(60, 57, 61, 55), uniform=[UNIFORM]).verdict == CONTRADICTED
    assert judge(rules.a, by_method(60, 57, (57, 62, 58), 55), uniform=[UNIFORM]).verdict == NOT_CONFIRMED


def test_a_counts_the_cells_in_which_ggr_leads():
    sparser = {replace(run, sparsity=0.99): value for run, value in by_method(60, 57, 61, (40, 60, 80)).items()}
    cells = [UNIFORM, {**UNIFORM, "sparsity": 0.99}]
    answer = judge(rules.a, by_method(60, 57, 58, 55) | sparser, uniform=cells)
    counts = ((2, 0), (1, 1), (1, 0))  # DSR, RigL, SET
    notes = [f"interval above zero in {above} and below in {below} of 2 cells" for above, below in counts]
    assert [one.note for one in answer.effects] == notes
    assert all(note in main_effects(answer) for note in notes)
    assert judge(rules.a, by_method(60, 57, 58, 55), uniform=[UNIFORM]).effects[0].note == ""


def test_b_what_a_method_loses_from_erk_to_uniform():
    erk = {replace(run, start="erk"): value for run, value in by_method(62, 61, 64, 63).items()}
    found = judge(rules.b, by_method(60, 57, 58, 57) | erk, both=[CELL])  # losses: 2, 4, 6, 6
    assert (means(found), found.verdict) == ([2, 4, 4], CONFIRMED)
    assert means(found) == [round(one.interval.mean, 3) - 2 for one in found.details[1:]]


GROWTHS = [{"method": "ggr", "growth": growth} for growth in ("mix", "random", "gradient")]


def shortfalls(rule, variants, easy, hard, apart=False):
    """The answer where three growths reached ``easy`` and ``hard`` in two settings; ``apart``: of two groups."""
    settings = {0.97: easy, 0.99: hard}
    runs = {
        replace(MLP, sparsity=sparsity, **variant): value
        for sparsity, values in settings.items()
        for variant, value in zip(variants, values, strict=True)
    }
    cells = {str(sparsity): {**UNIFORM, "sparsity": sparsity} for sparsity in settings}
    groups = {name: [cell] for name, cell in cells.items()} if apart else {"here": list(cells.values())}
    return judge(rule, runs, ablation=groups)


@pytest.mark.parametrize(
    ("easy", "hard", "gaps", "verdict"),
    [
        ((90, 91, 88), (50, 40, 51), [10, 2], CONFIRMED),  # worst shortfalls: mix 1, random 11, gradient 3
        ((90, 91, 90), (50, 40, 52), [10, -1], CONTRADICTED),  # 2, 12, 1
        ((90, 91, 88), (50, 40, (48, 53, 52)), [10, 2], NOT_CONFIRMED),  # the mix: 0, 3, 2 behind in the harder setting
    ],
)
def test_d_the_worst_of_two_settings_counts(easy, hard, gaps, verdict):
    found = shortfalls(rules.d, GROWTHS, easy, hard)
    assert (means(found), found.verdict) == (gaps, verdict)


@pytest.mark.parametrize(
    ("easy", "hard", "gap", "verdict"),
    [
        ((90, 91, 88), (50, 40, 51), -2, CONTRADICTED),  # SET+RigL falls 1 behind, RigL 3: mixing helps in place too
        ((90, 91, 90), (50, 40, 52), 1, CONFIRMED),
        ((90, 91, 89.7), (50, 40, 50), -0.3, CONFIRMED),  # less than SAME
    ],
)
def test_e_what_mixing_spares_rigl_in_place(easy, hard, gap, verdict):
    found = shortfalls(rules.e, [{"method": method} for method in ("set_rigl", "set", "rigl")], easy, hard)
    assert (means(found), found.verdict) == ([gap], verdict)


def detail_means(answer):
    return {one.name: round(one.interval.mean, 3) for one in answer.details}


def test_d_groups_count_together_and_are_shown_apart():
    answer = shortfalls(rules.d, GROWTHS, (90, 91, 88), (50, 40, 51), apart=True)
    assert (means(answer), answer.verdict) == ([10, 2], CONFIRMED)
    details = detail_means(answer)
    for where, mix, random, gradient in (("0.97", 1, 0, 3), ("0.99", 1, 11, 0)):
        shown = {name.removeprefix(f"{where}: worst shortfall of "): mean for name, mean in details.items()}
        assert (shown["the mix"], shown["random growth"], shown["gradient growth"]) == (mix, random, gradient)
        assert shown["random growth minus that of the mix"] == random - mix
        assert shown["gradient growth minus that of the mix"] == gradient - mix


def test_d_the_spread_over_settings():
    """From the means of the settings, 90 and 48, the mix is 0 and 2 points away, random 2 and -6, gradient -2 and 4."""
    answer = shortfalls(rules.d, GROWTHS, (90, 92, 88), (50, 42, 52))
    spreads = {name: mean for name, mean in detail_means(answer).items() if name.startswith("spread")}
    assert spreads == {  # of two numbers: their distance by the root of two
        "spread over settings of random growth minus that of the mix": round((8 - 2) / 2**0.5, 3),
        "spread over settings of gradient growth minus that of the mix": round((6 - 2) / 2**0.5, 3),
    }


def test_d_a_single_shortfall_has_no_interval_but_differences_have():
    answer = shortfalls(rules.d, GROWTHS, (90, 91, 88), (50, 40, (48, 53, 52)))
    (mix,) = (one for one in answer.details if one.name == "here: worst shortfall of the mix")
    assert (mix.interval.mean, mix.interval.has_width) == (1, False)
    (gap,) = (one for one in answer.details if one.name.endswith("shortfall of gradient growth minus that of the mix"))
    assert gap.interval.low < 0


def test_d_seeds_that_one_cell_has_alone_are_not_waited_for():
    runs = {replace(MLP, **variant): 60 for variant in GROWTHS}
    more = {replace(MLP, method="ggr"): (60, 60, 60, 60)}  # a control of another claim
    answer = judge(rules.d, runs | more, ablation={"here": [UNIFORM]})
    assert (answer.done, answer.planned) == (9, 9)


def test_f_empty_neurons_and_the_size_that_is_left():
    def layers(run):
        moving = run.method in ("dsr", "ggr")
        layer = {"neurons": 100, "empty_neurons": 4 if moving else 1, "remaining": 90 if moving else 100}
        return {"layers": [layer]}

    found = judge(rules.f, by_method(60, 60, 60, 60), layers, emptiness=[UNIFORM])
    assert (means(found), found.verdict) == ([3, 10], CONFIRMED)


def test_g_dropping_from_each_layer_minus_dropping_network_wide():
    network_wide = replace(MLP, method="ggr", scope="network")
    found = judge(rules.g, {replace(MLP, method="ggr"): 60, network_wide: 58}, drop=[UNIFORM])
    assert (means(found), found.verdict) == ([2], CONFIRMED)


def test_h_set_minus_ggr():
    found = judge(rules.h, by_method(60, 1, 1, 58), low=[UNIFORM])
    assert (means(found), found.verdict) == ([-2], CONTRADICTED)


@pytest.mark.parametrize(
    ("ggr", "dsr", "rigl", "verdict"),
    [
        (60, 12, 10, CONFIRMED),  # below 15 % of ten classes: failed
        (60, 12, (10, 60, 60), NOT_CONFIRMED),  # RigL fails with one seed of three
        (60, 60, 60, CONTRADICTED),
        (12, 10, 12, CONTRADICTED),
    ],
)
def test_i_who_fails(ggr, dsr, rigl, verdict):
    assert judge(rules.i, by_method(ggr, dsr, rigl, 60), failing=UNIFORM).verdict == verdict


def test_i_how_far_each_is_on_its_side_of_the_line():
    assert means(judge(rules.i, by_method(60, 12, 10, 60), failing=UNIFORM)) == [5, 3, 45]  # RigL, DSR, GGR; line at 15


def test_i_is_undecided_without_runs_of_a_method():
    runs = {run: value for run, value in by_method(60, 12, 10, 60).items() if run.method != "dsr"}
    found = judge(rules.i, runs, failing=UNIFORM)
    assert (len(found.effects), found.verdict) == (2, UNDECIDED)


def test_i_intervals_of_shares_are_never_empty():
    found = judge(rules.i, by_method(60, 12, (10, 60, 60), 60), failing=UNIFORM)
    shares = [one.interval for one in found.details[:3]]
    assert [round(share.mean, 3) for share in shares] == [33.333, 100, 0]
    bounds = [(round(share.low, 1), round(share.high, 1)) for share in shares]
    assert bounds == [(0.8, 90.6), (29.2, 100), (0, 70.8)]  # of 1, 3 and 0 out of 3, by tables


def starving(initial, end, control):
    """The answer where the middle layer has so many weights: at the start, at the end, and from a uniform start."""

    def layers(run):
        starved = run.method.endswith("ggr_starved")
        nnz = end if starved else control if run.method == "ggr" else initial
        return {"layers": [{}, {"initial_nnz": initial, "nnz": nnz}, {}]}

    starved = {replace(MLP, method=name, start=Run.start): 60 for name in STARVED_METHODS}
    return judge(rules.j, starved | {replace(MLP, method="ggr"): 58}, layers, starved=[CELL])


@pytest.mark.parametrize(("end", "share", "verdict"), [(82, 0.8, CONFIRMED), (28, 0.2, CONTRADICTED)])
def test_j_the_share_of_its_gap_that_a_starved_layer_closes(end, share, verdict):
    found = starving(10, end, 100)
    assert (means(found), found.verdict) == ([share], verdict)
    details = {one.name.partition(",")[0]: round(one.interval.mean, 6) for one in found.details}
    assert details == {  # RigL and DSR stay where they were
        "share of the gap closed by RigL": 0,
        "share of the gap closed by DSR": 0,
        "accuracy of GGR": 2,
    }


@pytest.mark.parametrize("control", [10, 5])
def test_j_without_a_gap_there_is_no_share_of_it(control):
    found = starving(10, 6, control)
    assert (found.effects, found.verdict) == ((), UNDECIDED)


def test_k_sparse_and_wide_minus_dense_and_narrow():
    wide, narrow = replace(MLP, method="ggr"), Run(model="mlp", method=DENSE, sparsity=0.0, width=0.5)
    cells = {**UNIFORM, "method": "ggr"}, {"model": "mlp", "width": 0.5, "method": DENSE}
    found = judge(rules.k, {wide: 60, narrow: 45}, lambda run: {"nnz": 84 if run.is_dense else 63}, narrow=[cells])
    assert (means(found), found.verdict) == ([15], CONFIRMED)
    (weights,) = found.details  # how equal the "equal weights" are
    assert (weights.interval.mean, weights.unit) == (-25, "%")
