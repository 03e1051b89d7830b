"""Runs grouped into what a table or a figure compares: equal trainings once, seeds together, other recipes apart."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from rewire.lab.references import file_label
from rewire.lab.report.looks import (
    label_of,
    labels_of_library,
    method_look,
    method_position,
    network_label,
    start_position,
)
from rewire.lab.results import Record
from rewire.lab.run import DENSE, Run

Column = tuple[float, str]  # sparsity and start

# Settings that a table does not show, so that a network is listed once for each of their values.
_RECIPE = {"epochs", "batch_size", "lr", "momentum", "weight_decay", "warmup", "precision", "limit"}
# Settings by which a table arranges its cells.
_SHOWN = ("data", "model", "method", "growth", "sparsity", "start", "scope", "width")
_SETTINGS = {field.name for field in fields(Run)} - {"seed"}
_DEFAULTS = {field.name: field.default for field in fields(Run)}
# Settings without an effect on dense runs.
SPARSE_ONLY = ("sparsity", "start", "scope", "fraction", "every", "until", "growth", "init", "store")


@dataclass(frozen=True)
class Entry:
    """Runs that differ only in their seed: what a cell is made of."""

    data: str
    network: str
    method: str
    column: Column
    scope: str
    records: tuple[Record, ...] = ()


def method_name(run: Run) -> str:
    """What tables call the method of a run."""
    return method_look(run).label


def told_apart(records: Iterable[Record]) -> list[Record]:
    """The same records, with names for own code of which no two are alike: tables arrange their cells by names.

    A function whose name another file or the library has too is called after its file as well, and code that was
    changed between runs by the beginning of its hash.
    """
    all_records = list(records)
    codes = {(code.role, code.name, code.digest) for record in all_records for code in record.run.code}
    versions = Counter((role, name) for role, name, _ in codes)
    labels = Counter((role, file_label(name)) for role, name in versions)
    names = {}
    for role, name, digest in codes:
        clashes = labels[role, file_label(name)] > 1 or file_label(name) in labels_of_library(role)
        shown = name.replace(".py:", ".").replace(":", ".") if clashes else file_label(name)
        shown += f"-{digest[:6]}" if versions[role, name] > 1 else ""
        if shown != file_label(name):
            names[role, name, digest] = shown
    return [replace(record, run=_renamed(record.run, names)) for record in all_records] if names else all_records


def _renamed(run: Run, names: dict[tuple[str, str, str], str]) -> Run:
    keys = {code.role: (code.role, code.name, code.digest) for code in run.code}
    changes = {role: names[key] for role, key in keys.items() if key in names}
    return _changed(run, changes) if changes else run


def distinct(records: Iterable[Record]) -> list[Record]:
    """Each training once, in the order of tables: experiments share runs, and dense ones have no sparsity."""
    by_run: dict[Run, Record] = {}
    for record in sorted(records, key=lambda record: record.status != "done"):
        by_run.setdefault(without_unused(record.run), record)
    return [by_run[run] for run in sorted(by_run, key=_order)]


def entries(records: Iterable[Record]) -> list[Entry]:
    """Runs grouped by what a table compares. Runs of another recipe or setting are named apart and share no cell."""
    runs = {without_unused(record.run): record for record in distinct(records)}
    groups: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.data, run.model].append(run)
        groups[tuple(getattr(run, name) for name in _SHOWN)].append(run)
    differing: dict[tuple[object, ...], set[str]] = defaultdict(set)  # settings to mention, by data set and network
    for key, group in groups.items():
        names = _RECIPE if len(key) == 2 else _SETTINGS
        differing[key[:2]] |= {name for name in names if len({getattr(run, name) for run in group}) > 1}
    members: dict[Entry, list[Record]] = defaultdict(list)
    for run, record in runs.items():
        network = network_label(run.model, run.width)
        named = differing[run.data, run.model] - set(SPARSE_ONLY if run.is_dense else ())
        network += "".join(f", {name} {setting(run, name)}" for name in sorted(named))
        column = (run.sparsity, run.start)
        members[Entry(label_of("data", run.data), network, method_name(run), column, run.scope)].append(record)
    networks = list(dict.fromkeys((entry.data, entry.network) for entry in members))
    result = [replace(entry, records=tuple(own)) for entry, own in members.items()]
    return sorted(result, key=lambda entry: networks.index((entry.data, entry.network)))


def setting(run: Run, name: str) -> str:
    """A setting in words; code of one's own by the beginning of its hash."""
    if name == "code":
        return " ".join(code.digest[:4] for code in run.code) or "of the library"
    return str(getattr(run, name))


def without_unused(run: Run) -> Run:
    """The run with defaults in place of options that have no effect on it."""
    if run.is_dense:
        defaults = {name: _DEFAULTS[name] for name in SPARSE_ONLY}
        return _changed(run, defaults | {"sparsity": 0.0, "start": DENSE})
    if run.code_of("method") is not None:  # its options were checked when the run was made
        return run
    try:
        return _changed(run, {name: _DEFAULTS[name] for name, _ in run.ignored()})
    except ValueError:  # a method of another version
        return run


def _changed(run: Run, values: Mapping[str, object]) -> Run:
    return Run.from_dict(run.to_dict() | dict(values))


def _order(run: Run) -> tuple[object, ...]:
    place = label_of("data", run.data).lower(), label_of("model", run.model).lower(), run.width
    method = method_position(method_name(run))
    return *place, method, run.sparsity, start_position(run.start), run.scope, run.seed, run.id
