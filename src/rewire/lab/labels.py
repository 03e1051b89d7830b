"""What distinguishes the runs of a list: settings that all share make one line, the others make the labels."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from rewire.lab.references import Code, file_label
from rewire.lab.run import ROLES, Run

_ORDER = ["model", "data", "method", "growth", "sparsity", "start"]  # the rest follows in the order of the fields
_UNNAMED = {"method", "sparsity", "start", *ROLES}  # values that are clear without the name of the setting


def differing(runs: Sequence[Run]) -> list[str]:
    """The settings in which some runs differ, in the order of labels; the seed last."""
    names = [field.name for field in fields(Run) if field.name not in (*_ORDER, "seed")]
    varied = [name for name in (*_ORDER, *names) if name != "code" and len({getattr(run, name) for run in runs}) > 1]
    return [*varied, *(["code"] if _changed_code(runs) else []), "seed"]


def _changed_code(runs: Sequence[Run]) -> set[tuple[str, str]]:
    """Role and name of the code that has the same name in several runs but not the same content."""
    contents = {(code.role, code.name, code.digest) for run in runs for code in run.code}
    return {key for key, count in Counter((role, name) for role, name, _ in contents).items() if count > 1}


def distinct_labels(runs: Sequence[Run]) -> list[str]:
    """A label for each run, by the settings in which they differ. Runs that are equal get equal labels.

    >>> distinct_labels([Run(lr=0.1), Run(lr=0.2), Run(lr=0.2, seed=1)])
    ['lr 0.1 seed 0', 'lr 0.2 seed 0', 'lr 0.2 seed 1']
    """
    names, changed = differing(runs), _changed_code(runs)
    short = [_with_code(run, [code for code in run.code if (code.role, code.name) in changed]) for run in runs]
    return [" ".join(filter(None, (describe(run, name) for name in names))) for run in short]


def common_label(runs: Sequence[Run]) -> str:
    """The settings that all runs share: network, data and method, and what differs from the defaults.

    >>> common_label([Run(lr=0.2, seed=0), Run(lr=0.2, seed=1)])
    'vgg-small digits ggr 97% erk lr 0.2'
    """
    varied = set(differing(runs))
    changed = {field.name for field in fields(Run) if getattr(runs[0], field.name) != field.default}
    names = [field.name for field in fields(Run) if field.name not in (*_ORDER, "code")]  # code is named already
    shown = [name for name in (*_ORDER, *names) if name not in varied and (name in changed or name in _UNNAMED)]
    return " ".join(filter(None, (describe(runs[0], name) for name in shown)))


def _with_code(run: Run, codes: Sequence[Code]) -> Run:
    """The same run with other records of code; none is looked up."""
    return Run.from_dict(run.to_dict() | {"code": [asdict(code) for code in codes]})


def unique_labels(runs: Sequence[Run], folders: Sequence[str]) -> list[str]:
    """Labels of which no two are alike: where the same run is in several folders, the folder is added."""
    labels = distinct_labels(runs)
    counts = Counter(labels)
    return [
        f"{label} in {folder}" if counts[label] > 1 else label for label, folder in zip(labels, folders, strict=True)
    ]


def describe(run: Run, name: str) -> str:
    """One setting of a run in words; nothing if it has no meaning for the run."""
    value: Any = getattr(run, name)
    if run.is_dense and name in ("sparsity", "start", "growth", "scope", "fraction", "every", "until", "store"):
        return ""
    if name in ROLES:
        return file_label(value)
    if name == "sparsity":
        return f"{100 * value:g}%"
    if name == "code":
        return " ".join(f"code {one.digest[:6]}" for one in value)
    if name == "growth" and value == Run.growth:
        return ""
    return str(value) if name in _UNNAMED else f"{name.replace('_', ' ')} {value}"
