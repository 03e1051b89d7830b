"""Figures with their captions, network by network; and what the figures share.

Every figure is a ``Figure`` object of its own; no pyplot state is touched.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from rewire._lookup import choose
from rewire.lab.names import DENSE_LOOK
from rewire.lab.registry import Registry
from rewire.lab.report.groups import Column, Entry, distinct, entries, method_name
from rewire.lab.report.looks import look_of_label
from rewire.lab.report.registry import LAST, Maker
from rewire.lab.report.style import WIDTH
from rewire.lab.results import Record
from rewire.parts.start import start_label

PAPER: Column = (0.97, "erk")  # the column that the paper's figures show
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Picture:
    """A figure with its title and caption; ``name`` serves as file name."""

    name: str
    title: str
    caption: str
    figure: Figure
    details: str = ""  # HTML for the page, below the figure


@dataclass(frozen=True)
class Subject:
    """What the figures of one network are about: all its runs, and those of one sparsity and start."""

    data: str
    network: str
    entries: tuple[Entry, ...]
    layer: str | None = None  # the layer to show, if one was chosen

    @property
    def title(self) -> str:
        """The network and its data set."""
        return f"{self.network} on {self.data}"

    @property
    def records(self) -> list[Record]:
        """All runs."""
        return [record for entry in self.entries for record in entry.records]

    @property
    def column(self) -> Column | None:
        """The sparsity and start to show: the paper's if a run is finished, else those most methods have finished."""
        sparse = [entry for entry in self.entries if entry.method != DENSE_LOOK.label]
        methods = Counter(entry.column for entry in sparse if any(record.result for record in entry.records))
        return PAPER if PAPER in methods else max(methods, key=methods.__getitem__, default=None)

    @property
    def column_records(self) -> list[Record]:
        """The runs of that column."""
        return [record for entry in self.entries if entry.column == self.column for record in entry.records]

    @property
    def column_title(self) -> str:
        """The network, its data set and the column, as a sentence."""
        sparsity, start = self.column or PAPER
        return f"{self.title}, s={sparsity:g}, {start_label(start)} start."

    @property
    def layer_names(self) -> list[str]:
        """The layers of the network."""
        finished = [record for record in self.records if record.result]
        return layer_counts(finished[:1], "nnz")[0] if finished else []

    def picture(self, name: str, title: str, caption: str, figure: Figure) -> Picture:
        """A picture whose file is named after the network."""
        slug = re.sub("[^a-z0-9.]+", "-", f"{self.data} {self.network}".lower())
        return Picture(f"{name}-{slug}", f"{title}, {self.title}", caption, figure)


FIGURES: Registry[Maker[Picture]] = Registry("figure", folder="rewire.lab.report.figures")


def register_figure(name: str, *, order: int = LAST) -> Callable[[Function], Function]:
    """A decorator that adds a figure: a function of a ``Subject`` that returns a list of ``Picture``."""

    def add(function: Function) -> Function:
        FIGURES.add(name, Maker(name, function, order))
        return function

    return add


def pictures(records: Iterable[Record], layer: str | None = None) -> list[Picture]:
    """All figures that these records have something for, network by network, with the masks of ``layer``.

    Without a layer it is the third one, as in the paper; a network that does not have the layer shows its third too.
    """
    groups: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in entries(records):
        if entry.scope == "layer":
            groups[entry.data, entry.network].append(entry)
    subjects = [Subject(data, network, tuple(group), layer) for (data, network), group in groups.items()]
    names = {name: None for subject in subjects for name in subject.layer_names}
    if layer is not None and names:
        choose("layer", layer, names)
    makers = sorted(FIGURES.values(), key=lambda maker: maker.order)
    return [picture for subject in subjects for maker in makers for picture in maker.function(subject)]


def by_method(records: Iterable[Record], without: Sequence[str] = ()) -> dict[str, list[Record]]:
    """Runs by the label of their method, in the order of tables."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in distinct(records):
        if method_name(record.run) not in without:
            groups[method_name(record.run)].append(record)
    return groups


def finished_by_method(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Finished sparse runs by the label of their method."""
    return by_method(record for record in records if record.result and not record.run.is_dense)


def layer_counts(group: Sequence[Record], count: str) -> tuple[list[str], NDArray[np.float64], NDArray[np.float64]]:
    """Names, sizes and the mean of a count over runs, layer by layer."""
    results = [record.result["layers"] for record in group if record.result]
    counts = np.mean([[layer[count] for layer in layers] for layers in results], axis=0)
    sizes = np.array([np.prod(layer["shape"]) for layer in results[0]], float)
    return [layer["name"] for layer in results[0]], sizes, counts


def panels(count: int, across: int) -> tuple[Figure, list[Axes]]:
    """A figure of panels over epochs with common axes; those left over are hidden."""
    across = min(count, across)
    down = -(-count // across)
    figure = Figure(figsize=(WIDTH, 0.6 + 2.5 * down))
    grid = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    for axes in grid:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in grid[count:]:
        axes.set_visible(False)
    figure.supxlabel("epoch", fontsize=10)
    return figure, grid[:count]


def curve_style(method: str) -> dict[str, Any]:
    """How the curve of a method is drawn."""
    look = look_of_label(method)
    linestyle = "-" if look.marker else "--"
    return {"color": look.light, "marker": look.marker, "markersize": 4.5, "linestyle": linestyle}
