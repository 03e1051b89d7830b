"""The results page: its rules on made-up results with known answers, the whole pipeline on digits, the stored page."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from tests.lab.made_up import record

from rewire.lab.compact import collect, read_runs
from rewire.lab.environment import code_commit
from rewire.lab.experiments.registry import runs_of
from rewire.lab.experiments.variants import STARVED_METHODS, starved_layer
from rewire.lab.report import results_page
from rewire.lab.report.claim_rules import lead_of_ggr, method
from rewire.lab.report.claims import CLAIMS, OPEN_QUESTION
from rewire.lab.report.findings import (
    CONFIRMED,
    CONTRADICTED,
    NOT_CONFIRMED,
    UNDECIDED,
    Study,
    accuracy,
    answer,
    difference,
    effect,
    mean_of,
)
from rewire.lab.report.questions import LAYOUTS
from rewire.lab.report.results_about import UNPUBLISHED, machines, short_commit
from rewire.lab.report.shortfalls import worst_shortfall
from rewire.lab.results import folder_of
from rewire.lab.run import Run
from rewire.lab.training.train import train

DOCS = Path(__file__).parents[3] / "docs"
PLAN = [Run(method=method, start="uniform", seed=seed) for method in ("ggr", "rigl") for seed in range(4)]
CELLS = [{"method": "ggr"}, {"method": "rigl"}]


def study_of(ours, theirs, plan=PLAN):
    values = {"ggr": ours, "rigl": theirs}
    done = [record(run, values[run.method][run.seed]) for run in plan if run.seed < len(values[run.method])]
    return Study(done, plan)


def compared(study):
    gap = difference(study.values(CELLS[0]), study.values(CELLS[1]))
    return answer(study, CELLS, [effect("GGR minus RigL", gap)])


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([0.60, 0.61, 0.62, 0.60], [0.55, 0.56, 0.56, 0.54], CONFIRMED),
        ([0.55, 0.56, 0.56, 0.54], [0.60, 0.61, 0.62, 0.60], CONTRADICTED),
        ([0.60, 0.50, 0.62, 0.51], [0.55, 0.56, 0.56, 0.54], NOT_CONFIRMED),
        ([0.60, 0.61, 0.62], [0.55, 0.56, 0.56, 0.54], CONFIRMED),
        ([0.60, 0.61], [0.55, 0.56, 0.56, 0.54], UNDECIDED),
        ([], [0.55, 0.56, 0.56, 0.54], UNDECIDED),
    ],
)
def test_the_rule_of_all_claims(ours, theirs, verdict):
    assert compared(study_of(ours, theirs)).verdict == verdict


def test_a_claim_with_fewer_planned_seeds_is_decided_when_all_are_done_but_not_by_one():
    for seeds, verdict in ((2, CONFIRMED), (1, UNDECIDED)):
        plan = [run for run in PLAN if run.seed < seeds]
        assert compared(study_of([0.60, 0.61][:seeds], [0.50, 0.51][:seeds], plan)).verdict == verdict


def test_a_contradiction_allows_for_the_number_of_effects():
    study = study_of([0.50] * 4, [0.50] * 4)
    low = effect("low", dict(enumerate([-1.0, -3.0, -3.0, -1.0])))  # t = 3.46; 3.18 at 95 %, 4.86 at 98.3 %
    above = [effect(f"above {one}", dict.fromkeys(range(4), 1.0)) for one in range(2)]
    assert answer(study, CELLS, [low]).verdict == CONTRADICTED
    assert answer(study, CELLS, [low, *above]).verdict == NOT_CONFIRMED


def test_an_effect_by_hand_and_what_is_outstanding():
    found = compared(study_of([0.60, 0.62, 0.64], [0.50, 0.50, 0.50, 0.50]))
    assert (found.done, found.planned) == (7, 8)
    assert results_page.verdict(found) == "confirmed so far (7 of 8 runs)"
    assert results_page.verdict(compared(study_of([0.60, 0.62], [0.50] * 4))) == "undecided (6 of 8 runs)"
    assert results_page.verdict(compared(study_of([0.60, 0.62, 0.64, 0.66], [0.50] * 4))) == CONFIRMED
    interval = found.effects[0].interval
    assert (interval.n, round(interval.mean, 6)) == (3, 12.0)
    assert interval.half_width == pytest.approx(4.968, abs=1e-3)  # 4.303 * 2 / sqrt(3)


def test_the_average_over_cells_decides_and_each_of_them_is_shown():
    networks = [Run(width=width, start="uniform") for width in (1.0, 2.0)]
    names = ("ggr", "rigl", "dsr", "set")
    plan = [replace(run, method=name, seed=seed) for run in networks for name in names for seed in range(3)]
    reached = {("ggr", 1.0): 0.6, ("ggr", 2.0): 0.46}  # all others 0.5
    done = [record(run, reached.get((run.method, run.width), 0.5) + 0.01 * run.seed) for run in plan]
    wide, wider = ({"width": width, "model": Run.model, "sparsity": Run.sparsity} for width in (1.0, 2.0))
    found = lead_of_ggr(Study(done, plan), [wide, wider])
    assert (found.verdict, found.planned) == (CONFIRMED, 24)
    assert [round(one.interval.mean) for one in found.effects] == [3, 3, 3]
    assert [round(one.interval.mean) for one in found.details] == [10, 10, 10, -4, -4, -4]


def test_several_networks_are_averaged_over_the_seeds_that_all_have():
    assert mean_of([{0: 1.0, 1: 2.0}, {1: 4.0, 2: 9.0}]) == {1: 3.0}


def test_the_worst_shortfall_by_hand():
    easy = {"mix": {0: 90.0}, "random": {0: 91.0}, "gradient": {0: 88.0}}
    hard = {"mix": {0: 50.0}, "random": {0: 40.0}, "gradient": {0: 51.0}}
    assert [worst_shortfall([easy, hard], name, [0]) for name in easy] == [1.0, 11.0, 3.0]


def test_noise_of_seeds_is_no_shortfall():
    setting = {"mix": {0: 48.0, 1: 52.0}, "random": {0: 52.0, 1: 48.0}}  # each wins once: no difference on average
    assert [worst_shortfall([setting], name, [0, 1]) for name in setting] == [0.0, 0.0]
    assert worst_shortfall([setting], "mix", [0]) == 4.0


def test_a_cell_of_several_configurations_is_refused():
    study = Study([record(run, 0.5) for run in PLAN], PLAN)
    with pytest.raises(ValueError, match="name more of its settings"):
        study.values({"start": "uniform"})


STARVED_RIVALS = {method for method, name in STARVED_METHODS.items() if name != "ggr"}


class Asking(Study):
    """Notes every cell that a rule asks for."""

    def values(self, cell, measure=accuracy):
        self.asked.append(cell)
        return super().values(cell, measure)

    def progress(self, cells):
        self.asked += cells
        return super().progress(cells)


@pytest.mark.parametrize("scale", list(LAYOUTS))
def test_every_cell_that_a_claim_asks_for_is_planned(scale):
    study = Asking([], runs_of("evidence", scale))
    for claim in (*CLAIMS, OPEN_QUESTION):
        study.asked = []
        found = claim.judge(study, LAYOUTS[scale])
        assert (found.verdict, found.done) == (UNDECIDED, 0)
        assert study.asked
        unplanned = {cell.get("method") for cell in study.asked if not study.runs(cell)}
        assert unplanned <= STARVED_RIVALS, claim.key  # shown on the digits alone


@pytest.mark.parametrize("scale", list(LAYOUTS))
def test_the_page_of_a_finished_study_has_a_verdict_for_every_claim(scale):
    plan = [run for run in runs_of("evidence", scale) if run.seed < 5]
    records = [record(run, 0.5 + 0.01 * (int(run.id, 16) % 10)) for run in plan]
    for starved in (one for one in records if one.run.method in STARVED_METHODS):
        starved.result["layers"][starved_layer(len(starved.result["layers"]))]["initial_nnz"] = 1
    study = Study(records, plan)
    answers = results_page.answers_of(study, scale)
    assert [claim.key for claim, found in answers if found.verdict == UNDECIDED or found.done < found.planned] == []
    text = results_page.results_page(study, answers, scale, DOCS / "results" / "none.jsonl", {})
    assert f"**{len(plan)} of {len(plan)} planned runs are done**" in text
    assert "so far (" not in text
    assert ("outstanding" in text) == (scale == "demo")  # which leaves sections out
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [line.split(" | ") for line in table.splitlines()]
        assert len({len(row) for row in rows}) == 1
        assert len({tuple(row) for row in rows}) == len(rows)  # no two rows are alike


@pytest.fixture(scope="module")
def small_study(tmp_path_factory):
    """The reduced study, with little data and two epochs: every step of the campaign in seconds."""
    runs = [replace(run, epochs=2, limit=200, warmup=0) for run in runs_of("evidence", "demo")]
    folder = tmp_path_factory.mktemp("evidence")
    for run in runs:
        train(run, folder_of(folder / "runs", run))
    collect(folder / "runs", folder / "evidence.jsonl")
    return runs, folder


def test_the_whole_pipeline_on_digits(small_study, monkeypatch, tmp_path):
    runs, folder = small_study
    monkeypatch.setattr(results_page, "runs_of", lambda name, scale: runs)
    source = folder / "evidence.jsonl"
    pages = []
    for name in ("first.md", "second.md"):
        results_page.write_page(read_runs(source), "demo", source, folder / name)
        pages.append((folder / name).read_text())
    text = pages[0]
    assert pages[0] == pages[1]
    assert f"**{len(runs)} of {len(runs)} planned runs are done**" in text
    assert code_commit() is None or f"`{code_commit()[:12]}" in text
    for claim in CLAIMS:
        assert claim.statement in text
    verdicts = [
        line.split(" | ")[2].strip("*") for line in text.splitlines() if line.startswith("| ") and line[3:5] == " |"
    ]
    assert len(verdicts) == len(CLAIMS)
    assert set(verdicts) <= {CONFIRMED, NOT_CONFIRMED, CONTRADICTED}
    for figure in ("accuracy", "claims", "costs", "recovery"):
        assert (folder / "evidence" / f"{figure}.svg").exists()
        assert f"evidence/{figure}.svg" in text


def test_environments_that_differ_are_told_once():
    older = {"torch": "2.13", "cpu": "EPYC", "commit": "a" * 40}
    newer = {"torch": "2.14", "cpu": "EPYC", "kernels": "avx512", "device": "cpu"}
    assert machines([older, newer, newer]) == "torch 2.13 or 2.14, cpu EPYC, kernels avx512"


def test_compact_results_give_the_tables_of_the_folders(small_study):
    _, folder = small_study
    made = [results_page.tables(read_runs(path)) for path in (folder / "runs", folder / "evidence.jsonl")]
    assert made[0] == made[1]


def test_the_stored_page_is_what_the_stored_runs_give(tmp_path):
    source = DOCS / "results" / "evidence.jsonl"
    page = tmp_path / "results.md"
    study = results_page.study_of(read_runs(source), "workstation")
    answers = results_page.answers_of(study, "workstation")
    names = [path.stem for path in sorted(source.with_suffix("").glob("*.svg"))]
    figures = results_page.figures_of(names, source, DOCS / "results.md")
    page.write_text(results_page.results_page(study, answers, "workstation", source, figures))
    stored = (DOCS / "results.md").read_text()
    assert page.read_text() == stored, "run: rewire report docs/results/evidence.jsonl --page docs/results.md"


def empty_neurons(record):
    layers = record.result["layers"]
    return 100 * sum(layer["empty_neurons"] for layer in layers) / sum(layer["neurons"] for layer in layers)


def test_claim_f_is_asked_where_neurons_are_left_empty():
    layout = LAYOUTS["workstation"]
    study = results_page.study_of(read_runs(DOCS / "results" / "evidence.jsonl"), "workstation")

    def most(cell):
        """The largest share of empty neurons in percent that a method leaves."""
        of_methods = [study.values(method(cell, name), empty_neurons) for name in ("ggr", "dsr", "rigl", "set")]
        return max(fmean(values.values()) for values in of_methods)

    assert all(most(cell) >= 1 for cell in layout.emptiness)
    assert all(most(cell) < 1 for cell in layout.emptiness_beside)


def test_commits_of_stored_runs_are_in_the_history_or_are_said_not_to_be():
    shallow = git("rev-parse", "--is-shallow-repository")
    if shallow.returncode or shallow.stdout.strip() == "true":
        pytest.skip("there is no history here, or only its end")
    stored = {short_commit(one.result["environment"]["commit"]) for one in read_runs(DOCS / "results/evidence.jsonl")}
    assert set(UNPUBLISHED) <= stored
    for commit in stored - set(UNPUBLISHED):
        assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0, commit
    text = (DOCS / "results.md").read_text()
    assert all(f"`{commit}`{' †' * (commit in UNPUBLISHED)} (" in text for commit in stored)


def git(*words):
    return subprocess.run(["git", *words], cwd=DOCS, capture_output=True, text=True, check=False)
