"""``rewire methods``, ``models``, ``data`` and ``experiments``: what there is."""

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from rich.padding import Padding
from rich.text import Text

from rewire.core.method import Method
from rewire.lab.cli import arguments as cli
from rewire.lab.cli.terminal import console
from rewire.lab.data.datasets import fetch
from rewire.lab.data.source import DATASETS, Source
from rewire.lab.experiments.registry import EXPERIMENTS, SCALES
from rewire.lab.models.registry import MODELS
from rewire.lab.names import METHODS

About = tuple[str, list[str]]  # the label of an entry, and lines that say what it is


def methods(command: "cli.Methods", words: str) -> None:
    """The methods and their parts."""

    def about(name: str) -> About:
        entry = METHODS.find(name)
        return entry.plain_look.label, [entry.summary, _composition(entry.example(density=0.03))]

    _list(METHODS.names(), about)
    _own("method", "--method")


def _composition(method: Method) -> str:
    """The parts of a method in one line."""
    start, end = method.density.ends()
    density = f"density {start:g}" if start == end else f"density {start:g} falling to {end:g}"
    if not method.rewires:
        return f"{density}, never rewired"
    parts = {"drop": method.drop, "allocate": method.allocate, "grow": method.grow}
    parts |= {"constraint": method.constraint} if method.constraint is not None else {}
    return ", ".join([density, *(f"{name} {_part(part)}" for name, part in parts.items())])


def _part(part: Any) -> str:
    """A part with the fields that are not its defaults, such as ``Lowest(scope='network')``."""
    if not is_dataclass(part) or isinstance(part, type):
        return repr(part)
    changed = {field.name: value for field in fields(part) if (value := getattr(part, field.name)) != field.default}
    shown = ", ".join(f"{name}={getattr(value, 'value', value)!r}" for name, value in changed.items())
    return f"{type(part).__name__}({shown})"


def models(command: "cli.Models", words: str) -> None:
    """The networks."""
    _list(MODELS.names(), lambda name: (MODELS.find(name).label, [MODELS.find(name).about]))
    _own("network", "--model")


def experiments(command: "cli.Experiments", words: str) -> None:
    """The experiments."""

    def about(name: str) -> About:
        entry = EXPERIMENTS.find(name)
        return "", [entry.about, f"scales: {', '.join(SCALES)}" if entry.has_scales else ""]

    _list(EXPERIMENTS.names(), about)
    _own("experiment", "rewire sweep")


def data(command: "cli.Data", words: str) -> None:
    """List the data sets or download one."""
    if command.action == "fetch":
        if command.name is None:
            names = ", ".join(DATASETS.names())
            raise ValueError(f"name the data set to download: rewire data fetch NAME, with NAME one of {names}")
        DATASETS.find(command.name)
        path = fetch(command.name)
        where = f"{command.name} is in {path}" if path else f"{command.name} is embedded: nothing to fetch"
        console.print(where, highlight=False, soft_wrap=True)
        return
    _list(DATASETS.names(), _about_data)
    _own("data set", "--data")


def _about_data(name: str) -> About:
    source = DATASETS.find(name)
    if not isinstance(source, Source):
        return source.label, [source.about]
    size = f"{source.download / 1e6:,.0f} MB to download" if source.download else "embedded"
    shape = "x".join(map(str, source.shape))
    counts = f"{source.train:,} + {source.test:,} images of {shape}, {source.classes} classes"
    return source.label, [source.about, f"{counts}; {size}"]


def _list(names: Iterable[str], about: Callable[[str], About]) -> None:
    """Every entry; one that another package registers and that does not work is named with its error."""
    for name in names:
        try:
            label, lines = about(name)
        except Exception as error:
            label, lines = "", [f"cannot be used: {type(error).__name__}: {error}"]
        _entry(name, label, lines)


def _entry(name: str, label: str, lines: Iterable[str]) -> None:
    """A name in bold, and below it what it is, indented and wrapped to the terminal."""
    heading = Text(name, style="bold")
    if label and label.lower() != name.lower():
        heading.append(f"  {label}", style="not bold dim")
    console.print(heading)
    for line in filter(None, lines):
        console.print(Padding(Text(line.replace("``", "")), (0, 0, 0, 4)), highlight=False)


def _own(kind: str, option: str) -> None:
    console.print(f"\nYour own {kind}: {option} file.py:function, or package.module:function.", highlight=False)
