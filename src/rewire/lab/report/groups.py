"""Runs gathered into what a table or a figure compares: the same training once, seeds together, recipes apart."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rewire.lab.results import Record
from rewire.lab.run import DENSE, Run

Column = tuple[float, str]  # sparsity and start

# How names are printed, and in which order.
DATA = {"cifar100": "CIFAR-100", "tiny-imagenet": "Tiny-ImageNet", "fashion-mnist": "Fashion-MNIST"}
NETWORKS = {"mobilenet-v2": "MobileNetV2", "resnet-18": "ResNet-18", "vgg16": "VGG16", "vgg-small": "VGG-small"}
NETWORKS |= {"mlp": "MLP"}
METHODS = {DENSE: "Dense", "static": "Static", "gmp": "GMP", "granet": "GraNet", "deepr": "DeepR", "snfs": "SNFS"}
METHODS |= {"set": "SET", "rigl": "RigL", "set_rigl": "SET+RigL", "dsr": "DSR"}
GROWN = {"random": "GGR SET", "gradient": "GGR RigL", "mix": "GGR"}
STARTS = {"erk": "ERK", "uniform": "uni", "connected-erk": "conn. ERK", "connected-uniform": "conn. uni"}
_RECIPE = {"epochs", "batch_size", "lr", "momentum", "weight_decay", "warmup", "precision", "limit"}
_COMPARED = ("data", "model", "method", "growth", "sparsity", "start", "scope", "width")


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
    """As the paper calls it: GGR that grows at random is ``GGR SET``, by the gradient alone ``GGR RigL``."""
    return GROWN[run.growth] if run.method == "ggr" else METHODS.get(run.method, run.method)


def distinct(records: Iterable[Record]) -> list[Record]:
    """Each training once, in the order of the paper: experiments share runs, and dense ones have no sparsity."""
    found: dict[Run, Record] = {}
    for record in sorted(records, key=lambda one: one.status != "done"):
        found.setdefault(_bare(record.run), record)
    return [found[run] for run in sorted(found, key=_order)]


def entries(records: Iterable[Record]) -> list[Entry]:
    """Runs gathered by what they compare; those of another recipe or setting are told apart and share no cell."""
    runs = {_bare(record.run): record for record in distinct(records)}
    groups: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.data, run.model].append(run)
        groups[tuple(getattr(run, name) for name in _COMPARED)].append(run)
    apart: dict[tuple[object, ...], set[str]] = defaultdict(set)  # what has to be told about a network
    for key, group in groups.items():
        names = _RECIPE if len(key) == 2 else set(group[0].to_dict()) - {"seed"}
        apart[key[:2]] |= {name for name in names if len({getattr(run, name) for run in group}) > 1}
    found: dict[Entry, list[Record]] = defaultdict(list)
    for run, record in runs.items():
        network = NETWORKS.get(run.model, run.model) + (f" x{run.width:g}" if run.width != 1 else "")
        network += "".join(f", {name} {getattr(run, name)}" for name in sorted(apart[run.data, run.model]))
        data, column = DATA.get(run.data, run.data), (run.sparsity, run.start)
        found[Entry(data, network, method_name(run), column, run.scope)].append(record)
    networks = list(dict.fromkeys((entry.data, entry.network) for entry in found))
    made = [replace(entry, records=tuple(members)) for entry, members in found.items()]
    return sorted(made, key=lambda entry: networks.index((entry.data, entry.network)))


def _bare(run: Run) -> Run:
    """The run without what it does not use."""
    if run.method == DENSE:
        run = replace(run, sparsity=0.0, start=DENSE, scope="layer", fraction=None, every=None, until=1.0)
    return run if run.method == "ggr" else replace(run, growth="mix")


def _order(run: Run) -> tuple[object, ...]:
    method = (place(run.method, METHODS), place(run.growth, GROWN))
    where = (place(run.data, DATA), place(run.model, NETWORKS), run.width)
    return *where, *method, run.sparsity, place(run.start, STARTS), run.scope, run.seed, run.id


def place(name: str, names: Iterable[str]) -> int:
    """Where a name stands in an order; those that are not known stand behind."""
    known = list(names)
    return known.index(name) if name in known else len(known)
