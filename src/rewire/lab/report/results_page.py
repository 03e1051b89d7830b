"""The results page: verdicts on the paper's claims, and what the paper leaves open, written from stored runs.

Every number comes from the runs; ``rewire report FILE --page docs/results.md`` rebuilds the page.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rewire.lab.experiments.registry import runs_of
from rewire.lab.report.claims import CLAIMS, OPEN_QUESTION, Claim
from rewire.lab.report.findings import (
    CONFIRMED,
    CONTRADICTED,
    NOT_CONFIRMED,
    UNDECIDED,
    Answer,
    Effect,
    Study,
)
from rewire.lab.report.questions import LAYOUTS
from rewire.lab.report.registry import tables
from rewire.lab.report.render import to_markdown
from rewire.lab.report.results_about import about
from rewire.lab.report.results_costs import costs_section, dense_section
from rewire.lab.report.results_figures import save_figures
from rewire.lab.report.results_format import columns_of, markdown, number, range_and_seeds
from rewire.lab.report.results_sections import better_section, peer_section, transformers_section
from rewire.lab.results import Record, atomically

EXPERIMENT = "evidence"
PEER = "peer.jsonl"  # a peer's runs, beside the file of ours
SHOWN_TABLES = ("table1", "table3", "table4", "drop")
SHOWN_DETAILS = 3  # of each claim, in the table of verdicts
CAPTIONS = {
    "accuracy": "What the paper's methods reach from ERK and uniform starts: means, seeds and 95 % intervals",
    "claims": "Effects in points of accuracy behind the claims that are decided, with 95 % intervals; right of zero "
    "supports the claim",
    "costs": "Accuracy against cost: each point is a method at a sparsity and start; dense networks have a width",
    "losses": "Change of the gap in training loss between sparse and dense around a rewiring; zero is its mean before",
    "recovery": "Weights of the middle layer, which starts with a tenth of its share; mean and range over seeds",
}


def write_page(records: Sequence[Record], scale: str, source: Path, page: Path) -> None:
    """Write the page, and its figures into the folder that is named after the file of runs."""
    study = study_of(records, scale)
    answers = answers_of(study, scale)
    names = save_figures(answers, study, source.with_suffix(""))
    with atomically(page) as file:
        file.write(results_page(study, answers, scale, source, figures_of(names, source, page)).encode())


def study_of(records: Iterable[Record], scale: str) -> Study:
    """The study at a scale; its tables compare runs with the recipe of claim a's first cell."""
    plan = runs_of(EXPERIMENT, scale)
    compared = Study([], plan).runs(LAYOUTS[scale].uniform[0])
    return Study(records, plan, recipe=compared[0])


def answers_of(study: Study, scale: str) -> list[tuple[Claim, Answer]]:
    """Every claim with its answer, and the open question last."""
    return [(claim, claim.judge(study, LAYOUTS[scale])) for claim in (*CLAIMS, OPEN_QUESTION)]


def figures_of(names: Iterable[str], source: Path, page: Path) -> dict[str, str]:
    """The figures as Markdown, with paths as seen from the page."""
    place = os.path.relpath(source.with_suffix(""), page.parent)
    return {name: f"\n![{CAPTIONS[name]}]({place}/{name}.svg)\n\n*{CAPTIONS[name]}.*\n" for name in names}


def results_page(
    study: Study, answers: Sequence[tuple[Claim, Answer]], scale: str, source: Path, figures: Mapping[str, str]
) -> str:
    """The whole page as Markdown; ``source`` is the file that the runs come from."""
    all_tables = tables(list(study.compared_runs().values()))
    shown = [to_markdown(table) for table in all_tables if table.name.startswith(SHOWN_TABLES)]
    drawn = dict.fromkeys(CAPTIONS, "") | dict(figures)
    claims = {claim.key: _claim(claim, answer) for claim, answer in answers}
    claims["j"] += drawn["recovery"]
    connected = claims.pop(OPEN_QUESTION.key)
    parts = [
        f"# Results: does the paper reproduce?\n\n{_by_verdict(answers[:-1])}",
        drawn["accuracy"],
        _summary(answers[:-1]) + drawn["claims"],
        dense_section(study),
        about(study, EXPERIMENT, scale, source),
        "## The claims one by one\n",
        *claims.values(),
        "## Beyond the paper\n",
        connected,
        better_section(study),
        transformers_section(study, scale) + drawn["losses"],
        peer_section(source.with_name(PEER)),
        costs_section(study) + drawn["costs"],
        "## Tables\n",
        *shown,
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


def verdict(answer: Answer) -> str:
    """The verdict in words, with what is outstanding."""
    if answer.done == answer.planned != 0:
        return answer.verdict
    outstanding = f"({answer.done} of {answer.planned} runs)"
    return f"undecided {outstanding}" if answer.verdict == UNDECIDED else f"{answer.verdict} so far {outstanding}"


def _summary(answers: Iterable[tuple[Claim, Answer]]) -> str:
    rows = [[claim.key, claim.statement, f"**{verdict(answer)}**", main_effects(answer)] for claim, answer in answers]
    return "\n".join(["## Verdicts\n", *markdown(["", "claim", "verdict", "main effects"], rows, 4)]) + "\n"


def _by_verdict(answers: Sequence[tuple[Claim, Answer]]) -> str:
    """How many claims have each verdict, and which."""
    keys: dict[str, list[str]] = {name: [] for name in (CONFIRMED, NOT_CONFIRMED, CONTRADICTED, UNDECIDED)}
    for claim, answer in answers:
        keys[answer.verdict].append(claim.key)
    counts = [f"{len(own)} {name} ({', '.join(own)})" for name, own in keys.items() if own]
    so_far = "" if all(answer.done == answer.planned for _, answer in answers) else ", so far"
    return (
        f"Of {len(answers)} statements taken from the paper{so_far}: {'; '.join(counts)}. They are asked in a smaller "
        'setting than the paper\'s, and "not confirmed" does not mean that there is no effect: [how to read this '
        "page](#how-to-read-this-page).\n"
    )


def main_effects(answer: Answer) -> str:
    """The effects, a line each; while there are none, the first details that are known."""
    shown = answer.effects or answer.details[:SHOWN_DETAILS]
    return "<br>".join(f"{effect.name}: {_in_words(effect)}" for effect in shown) or "no pair of runs yet"


def _in_words(one: Effect) -> str:
    """A mean with its interval and n, such as ``+1.20 points (+0.80 to +1.60; n = 3)``."""
    unit = f" {one.unit}" if one.unit else ""
    note = f", {one.note}" if one.note else ""
    about = range_and_seeds(one.interval, signed=one.signed)
    return f"{number(one.interval.mean, signed=one.signed)}{unit} ({about}){note}"


def _claim(claim: Claim, answer: Answer) -> str:
    title = f"### {claim.key}. {claim.statement}" if len(claim.key) == 1 else f"### {claim.statement}"
    lines = [f"{title}\n", f"**{verdict(answer).capitalize()}.** {claim.rule}\n", f"The paper: {claim.paper}\n"]
    rows = [[_named(effect), *columns_of(effect.interval, signed=effect.signed)] for effect in answer.effects]
    rows += [
        [f"detail: {_named(effect)}", *columns_of(effect.interval, signed=effect.signed)] for effect in answer.details
    ]
    return "\n".join(lines + (markdown(["effect", "mean", "95 % interval", "seeds"], rows, 1) if rows else [])) + "\n"


def _named(one: Effect) -> str:
    return f"{one.name} [{one.unit}]" if one.unit else one.name
