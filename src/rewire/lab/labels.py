"""What distinguishes the runs of a list: blocks of runs with a title for what they share, and a label for each run."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rewire.lab.references import file_label
from rewire.lab.run import ROLES, Run

_ORDER = ["model", "data", "method", "growth", "sparsity", "start"]  # the rest follows in the order of the fields
_SETTINGS = [*_ORDER, *(field.name for field in fields(Run) if field.name not in (*_ORDER, "seed", "code"))]
_DEFAULTS = {field.name: field.default for field in fields(Run)}
_APART = ("model", "data", "epochs")  # runs that differ in these stand in blocks of their own
_UNNAMED = {"method", "sparsity", "start", *ROLES}  # values that are clear without the name of the setting


@dataclass(frozen=True)
class Block:
    """Runs of one network, data set and length. The title says what most of them share, a label what is different."""

    title: str
    name: str  # what sets it apart from the other blocks of the list; empty if there is no other
    runs: list[Run]
    places: list[int]  # where the runs stand in the list
    labels: list[str]  # of the runs, without the block's name and the seed; empty if all have the same configuration

    def by_configuration(self) -> list[tuple[str, list[Run]]]:
        """The runs of each configuration over its seeds, with a label, in the order of the first run of each."""
        groups: dict[Hashable, tuple[str, list[Run]]] = {}
        for label, run in zip(self.labels, self.runs, strict=True):
            groups.setdefault(_content(run), (label or " ".join(run.words[2:]), []))[1].append(run)
        return list(groups.values())

    def with_seeds(self) -> Iterator[tuple[int, str]]:
        """The place of each run in the list, and its label with the seed."""
        for place, label, run in zip(self.places, self.labels, self.runs, strict=True):
            yield place, f"{label} seed {run.seed}".strip()


def blocks(runs: Sequence[Run]) -> list[Block]:
    """Runs by network, data set and epochs; all together if most configurations would stand alone.

    >>> several = [Run(model=model, method=method, lr=0.2) for model in ("mlp", "vit") for method in ("ggr", "set")]
    >>> [(block.title, block.labels) for block in blocks(several)]
    [('mlp digits 97% erk lr 0.2', ['ggr', 'set']), ('vit digits 97% erk lr 0.2', ['ggr', 'set'])]
    """
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for place, run in enumerate(runs):
        groups[tuple(getattr(run, name) for name in _APART)].append(place)
    if len(groups) == 1 or 2 * len(groups) > len({_content(run) for run in runs}):
        return [_block(runs, range(len(runs)), "")]
    shown, varied = _names(runs), [name for name in _APART if len({getattr(run, name) for run in runs}) > 1]
    names = [" ".join(describe(runs[places[0]], name, shown) for name in varied) for places in groups.values()]
    return [_block(runs, places, name) for places, name in zip(groups.values(), names, strict=True)]


def distinct_labels(runs: Sequence[Run]) -> list[str]:
    """A label for each run, by the settings in which they differ. Runs that are equal get equal labels.

    >>> distinct_labels([Run(lr=0.1), Run(lr=0.2), Run(lr=0.2, seed=1)])
    ['lr 0.1 seed 0', 'lr 0.2 seed 0', 'lr 0.2 seed 1']
    """
    labels = {place: f"{block.name} {label}" for block in blocks(runs) for place, label in block.with_seeds()}
    return [labels[place].strip() for place in range(len(runs))]


def titles(runs: Sequence[Run]) -> list[str]:
    """What the runs of a list share: a line for each block.

    >>> titles([Run(lr=0.2, seed=0), Run(lr=0.2, seed=1)])
    ['all: vgg-small digits ggr 97% erk lr 0.2']
    """
    parts = blocks(runs)
    return [f"all: {parts[0].title}"] if len(parts) == 1 else [part.title for part in parts]


def in_folders(labels: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Labels of which no two are alike: where the same run is in several folders, the folder is added."""
    counts = Counter(labels)
    pairs = zip(labels, folders, strict=True)
    return [f"{label} in {folder}" if counts[label] > 1 else label for label, folder in pairs]


def _block(listed: Sequence[Run], places: Sequence[int], block_name: str) -> Block:
    """The block of the listed runs that stand in some places."""
    runs = [listed[place] for place in places]
    varied = [name for name in _SETTINGS if len({getattr(run, name) for run in runs}) > 1]
    usual, shown, changed = _usual(runs, varied), _names(listed), _changed_code(listed)
    title = []
    for name in _SETTINGS:
        value = usual.get(name, getattr(runs[0], name))
        if (name not in varied or name in usual) and (name in _UNNAMED or value != _DEFAULTS[name]):
            # A dense run has no word for settings of sparse ones.
            speaker = min((run for run in runs if getattr(run, name) == value), key=lambda run: run.is_dense)
            title.append(describe(speaker, name, shown))
    labels = []
    for run in runs:
        different = [name for name in varied if name not in usual or getattr(run, name) != usual[name]]
        words = [describe(run, name, shown) for name in different]
        words += [f"code {code.digest[:6]}" for code in run.code if (code.role, code.name) in changed]
        labels.append(" ".join(filter(None, words)))
    return Block(" ".join(filter(None, title)), block_name, runs, list(places), labels)


def _usual(runs: Iterable[Run], varied: Iterable[str]) -> dict[str, Any]:
    """Of settings that differ: the values that more than half of the configurations have. Labels leave them out."""
    configurations = list({_content(run): run for run in runs}.values())
    usual = {}
    for name in set(varied) - _UNNAMED:
        value, count = Counter(getattr(run, name) for run in configurations).most_common(1)[0]
        if 2 * count > len(configurations):
            usual[name] = value
    return usual


def _content(run: Run) -> Hashable:
    """Everything but the seed; no code is looked up."""
    return tuple(getattr(run, name) for name in _SETTINGS), tuple(code.digest for code in run.code)


def _names(runs: Sequence[Run]) -> dict[str, str]:
    """What networks, data sets and methods are called: own code by its function, unless another file has the same."""
    names = {getattr(run, role) for run in runs for role in ROLES}
    counts = Counter(file_label(name) for name in names)
    return {name: file_label(name) if counts[file_label(name)] == 1 else name for name in names}


def _changed_code(runs: Sequence[Run]) -> set[tuple[str, str]]:
    """Role and name of the code that has the same name in several runs but not the same content."""
    contents = {(code.role, code.name, code.digest) for run in runs for code in run.code}
    return {key for key, count in Counter((role, name) for role, name, _ in contents).items() if count > 1}


def describe(run: Run, name: str, shown: Mapping[str, str] | None = None) -> str:
    """One setting of a run in words; nothing if it has no meaning for the run. ``shown``: what code is called."""
    value: Any = getattr(run, name)
    if run.is_dense and name in ("sparsity", "start", "growth", "scope", "fraction", "every", "until", "store"):
        return ""
    if name in ROLES:
        return (shown or {}).get(value) or file_label(value)
    if name == "sparsity":
        return f"{100 * value:g}%"
    if name == "growth" and value == Run.growth:
        return ""
    if name == "code":
        return " ".join(f"code {code.digest[:6]}" for code in value)
    words = name.replace("_", " ")
    return str(value) if name in _UNNAMED else f"{words} default" if value is None else f"{words} {value}"
