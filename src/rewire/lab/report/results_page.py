"""The results page: verdicts on the paper's claims, and what the paper leaves open, written from stored runs.

Every number comes from the runs; ``rewire report FILE --page docs/results.md`` rebuilds the page.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rewire.lab.experiments.registry import runs_of
from rewire.lab.report.claims import CLAIMS, OPEN_QUESTION, Claim
from rewire.lab.report.findings import UNDECIDED, Answer, Effect, Study, cpu_seconds
from rewire.lab.report.questions import LAYOUTS
from rewire.lab.report.registry import tables
from rewire.lab.report.render import to_markdown
from rewire.lab.report.results_figures import save_figures
from rewire.lab.report.results_sections import (
    better_section,
    bounds,
    columns_of,
    costs_section,
    markdown,
    peer_section,
    transformers_section,
)
from rewire.lab.results import Record, atomically
from rewire.lab.run import Run

EXPERIMENT = "evidence"
PEER = "peer.jsonl"  # a peer's runs, beside the file of ours
UNSAID = ("device", "commit")  # of the environments: stated elsewhere on the page
SHOWN_TABLES = ("table1", "table3", "table4", "drop")
SHOWN_DETAILS = 3  # of each claim, in the table of verdicts
CAPTIONS = {
    "accuracy": "What the paper's methods reach from both starts, with 95 % intervals over seeds",
    "claims": "Effects behind the claims, in points of accuracy with 95 % intervals; filled where they exclude zero",
    "costs": "Accuracy of the network with most runs, sparse and dense (of several widths), against its cost",
    "losses": "How far the training loss of sparse transformers is above the dense one's, around rewirings",
    "recovery": "A layer that starts with a tenth of its weights, with the range over seeds",
}


SETTINGS = {
    "workstation": """\
Every run on CIFAR-100 with a convolutional network sees 600,000 images: 12 epochs (the paper: 100) with the paper's
learning-rate schedule scaled, the first of them warm-up, and 23 rewirings. The paper's VGG16 was trained on
Tiny-ImageNet. Most networks have a quarter of the paper's channels (x0.25); those without a width have all of them.

What makes a sparse network hard to train is the number of connections of a neuron: at quarter width, 96 % leaves a
neuron in a hidden layer of VGG16 or ResNet-18 as many as 99 % does at full width, and 88 % as many as 97 %; the tables
name both. First layers have three inputs at any width: VGG16 at full width and 99 % starts with 17 weights for 64
neurons, at quarter width and 96 % with 17 for 16. In MobileNetV2 the match is rough, because channels are multiples of
8 and 3x3 filters have one input channel. So this page does not repeat the paper's numbers. It asks whether its
statements hold in a smaller setting of the same regime.

**Amendments.** The rules were written before the runs, and amended after the first 670: seeds of claims went from three
to five; connected ERK starts and 97 % at full width were added; MobileNetV2, of which there was no run, got a stem with
stride 2; verdicts are given from three seeds on; claim i is decided at full width alone; contradictions allow for the
number of effects. No verdict that was given before changed with these rules. The commit `2295625d91fe`, at which most
of the first runs were made, is not part of the history that was published; runs of that time were repeated bit for bit
on later code.
"""
}


def write_page(records: Sequence[Record], scale: str, source: Path, page: Path) -> None:
    """Write the page, and its figures into the folder that is named after the file of runs."""
    study = study_of(records, scale)
    answers = answers_of(study, scale)
    names = save_figures(answers, study, source.with_suffix(""))
    with atomically(page) as file:
        file.write(results_page(study, answers, scale, source, figures_of(names, source, page)).encode())


def study_of(records: Iterable[Record], scale: str) -> Study:
    """The study at a scale; its main data set is that of the first claim."""
    return Study(records, runs_of(EXPERIMENT, scale), LAYOUTS[scale].uniform[0]["data"])


def answers_of(study: Study, scale: str) -> list[tuple[Claim, Answer]]:
    """Every claim with its answer, and the open question last."""
    return [(claim, claim.judge(study, LAYOUTS[scale])) for claim in (*CLAIMS, OPEN_QUESTION)]


def figures_of(names: Iterable[str], source: Path, page: Path) -> list[str]:
    """The figures as Markdown, with paths as seen from the page."""
    place = os.path.relpath(source.with_suffix(""), page.parent)
    return [f"![{CAPTIONS[name]}]({place}/{name}.svg)\n\n*{CAPTIONS[name]}.*\n" for name in names]


def results_page(
    study: Study, answers: Sequence[tuple[Claim, Answer]], scale: str, source: Path, figures: Sequence[str]
) -> str:
    """The whole page as Markdown; ``source`` is the file that the runs come from."""
    shown = [to_markdown(table) for table in tables(_tabulated(study)) if table.name.startswith(SHOWN_TABLES)]
    parts = [
        _head(study, scale, source),
        _summary(answers[:-1]),
        *figures,
        "## The claims one by one\n",
        *(_claim(claim, answer) for claim, answer in answers[:-1]),
        "## Beyond the paper\n",
        _claim(*answers[-1]),
        better_section(study),
        transformers_section(study, scale),
        peer_section(source.with_name(PEER)),
        costs_section(study),
        "## Tables\n",
        *shown,
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _tabulated(study: Study) -> list[Record]:
    """The runs that tables show: those that were carried out in both stores once."""
    runs = study.main_runs()
    packed = {_in_store(run) for run in runs if run.store != Run.store}
    return [one for run, one in runs.items() if run.store != Run.store or run not in packed]


def _in_store(run: Run) -> Run:
    """The run as it would be in the usual store, to find those that were carried out in both."""
    return Run.from_dict(run.to_dict() | {"store": Run.store})


def _head(study: Study, scale: str, source: Path) -> str:
    done, planned = study.progress([{}])
    hours = sum(map(cpu_seconds, study.done.values())) / 3600
    environments = [one.result["environment"] for one in study.done.values() if one.result is not None]
    commits = ", ".join(
        f"`{one}`" for one in sorted({_short(one["commit"]) for one in environments if "commit" in one})
    )
    origin = f"`rewire sweep {EXPERIMENT} --scale {scale}`" + (f" at commit {commits}" if commits else "")
    return f"""# Results: does the paper reproduce?

This page is generated: `rewire report docs/results/evidence.jsonl --page docs/results.md` rebuilds it from the stored
runs, and no number is typed by hand. Runs: {origin}.
**{done} of {planned} planned runs are done**, in {hours:.1f} hours of one core ({_machines(environments)}).
`rewire repeat docs/results/evidence.jsonl` trains one of them again, chosen at random, and compares every number bit
for bit; they are the same on a processor of the same kind.

{SETTINGS.get(scale, "")}
**Statistics.** Runs with the same seed share the first weights and the order of the data, so differences are paired by
seed wherever two networks are alike in all but their sparse weights. Intervals are Student's t intervals at 95 % over
seeds, n is the number of seeds. Networks that did not learn count with the accuracy that they reached, except in tables
1 and 3, which mark them and leave them out. A claim is undecided until each of its effects has three seeds; "so far"
says that planned seeds are outstanding and may still change the verdict. "Not confirmed" means that the rule was met
neither way; as an interval over three seeds is wide, it does not show that there is no effect.
"""


def _short(commit: str) -> str:
    """A commit as people write it; ``-dirty`` stays."""
    return commit[:12] + ("-dirty" if commit.endswith("-dirty") else "")


def _machines(environments: Iterable[dict[str, Any]]) -> str:
    """Versions and hardware in words; what differs between runs has several values."""
    values: dict[str, set[str]] = {}
    for environment in environments:
        for name, value in environment.items():
            values.setdefault(name, set()).add(str(value))
    return ", ".join(f"{name} {' or '.join(sorted(own))}" for name, own in values.items() if name not in UNSAID)


def verdict(answer: Answer) -> str:
    """The verdict in words, with what is outstanding."""
    if answer.done == answer.planned != 0:
        return answer.verdict
    outstanding = f"({answer.done} of {answer.planned} runs)"
    return f"undecided {outstanding}" if answer.verdict == UNDECIDED else f"{answer.verdict} so far {outstanding}"


def _summary(answers: Iterable[tuple[Claim, Answer]]) -> str:
    rows = [[claim.key, claim.statement, f"**{verdict(answer)}**", _main_effects(answer)] for claim, answer in answers]
    return "\n".join(["## Verdicts\n", *markdown(["", "claim", "verdict", "main effects"], rows, 4)]) + "\n"


def _main_effects(answer: Answer) -> str:
    """The effects, a line each; while there are none, the first details that are known."""
    shown = answer.effects or answer.details[:SHOWN_DETAILS]
    return "<br>".join(f"{one.name}: {_in_words(one)}" for one in shown) or "no pair of runs yet"


def _in_words(one: Effect) -> str:
    """A mean with its interval and n, such as ``+1.20 points (+0.80 to +1.60; n = 3)``."""
    unit = f" {one.unit}" if one.unit else ""
    return f"{one.interval.mean:+z.2f}{unit} ({bounds(one.interval)})"


def _claim(claim: Claim, answer: Answer) -> str:
    title = f"### {claim.key}. {claim.statement}" if len(claim.key) == 1 else f"### {claim.statement}"
    lines = [f"{title}\n", f"**{verdict(answer).capitalize()}.** {claim.rule}\n", f"The paper: {claim.paper}\n"]
    rows = [[_named(one), *columns_of(one.interval)] for one in answer.effects]
    rows += [[f"detail: {_named(one)}", *columns_of(one.interval)] for one in answer.details]
    return "\n".join(lines + (markdown(["effect", "mean", "95 % interval", "seeds"], rows, 1) if rows else [])) + "\n"


def _named(one: Effect) -> str:
    return f"{one.name} [{one.unit}]" if one.unit else one.name
