"""The paper's figures from what runs left on disk: where the weights are, how they moved, how well that works.

Every function returns a ``Figure`` of its own; no pyplot state is touched.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray
from safetensors.numpy import load_file

from rewire._lookup import choose
from rewire.lab.report.groups import METHODS, STARTS, Column, Entry, distinct, entries, method_name
from rewire.lab.report.style import (
    DEPTH,
    GRID,
    LOOKS,
    MASK,
    NAMED,
    OTHER,
    STYLE,
    WIDTH,
    logarithmic,
    shrink,
    some,
    tile,
)
from rewire.lab.results import Record
from rewire.lab.run import DENSE

PAPER: Column = (0.97, "erk")  # the column that the paper's figures show
MASKED = ("SET", "RigL", "DSR", "GGR")


@dataclass(frozen=True)
class Picture:
    """A figure with what is said about it; ``name`` serves as file name."""

    name: str
    title: str
    caption: str
    figure: Figure


@matplotlib.rc_context(STYLE)
def layer_density(records: Iterable[Record]) -> Figure:
    """Density and number of active weights of each layer at the end, per method, and at the start (Figure 2)."""
    groups = _finished(records)
    names, sizes, start = _layers(next(iter(groups.values())), "initial_nnz")
    figure, place, few = Figure(figsize=(WIDTH, 5.6)), np.arange(len(names)), len(names) <= NAMED
    above, below = figure.subplots(2, 1, sharex=True)
    for axes, scale, label in ((above, sizes, "density"), (below, np.ones(1), "active weights")):
        axes.hlines(start / scale, place - 0.42, place + 0.42, LOOKS["Dense"][0], linewidth=1.5, label="start")
        for i, (method, group) in enumerate(groups.items()):
            shift = (i - (len(groups) - 1) / 2) * 0.7 / len(groups) * few  # side by side, equal ones stay visible
            look = _look(method) | ({"linestyle": "", "markersize": 7} if few else {"linewidth": 1})
            axes.plot(place + shift, _layers(group, "nnz")[2] / scale, **look, label=method)
        logarithmic(axes, percent=label == "density")
        axes.set_ylabel(label)
        axes.grid(visible=not few, axis="x")
    below.set_xlabel("" if few else "layer, from the input")
    if few:
        below.set_xticks(place, names, rotation=35, ha="right", rotation_mode="anchor")
    figure.legend(*above.get_legend_handles_labels(), loc="outside upper center", ncols=8, columnspacing=1.2)
    return figure


@matplotlib.rc_context(STYLE)
def masks(records: Iterable[Record], layer: str) -> Figure:
    """The final masks of one layer side by side; white is an active weight (Figure 3)."""
    found = {method: topology for method, group in _by_method(records, MASKED).items() if (topology := _masks(group))}
    images = {method: np.asarray(choose("layer", layer, topology) != 0) for method, topology in found.items()}
    shrunk = {method: shrink(tile(image)) for method, image in images.items()}
    brightest = max(float(image.max()) for image in shrunk.values()) or 1.0
    figure = Figure(figsize=(WIDTH, WIDTH / max(len(shrunk), 3) + 0.6))
    for axes, (method, image) in zip(figure.subplots(1, len(shrunk), squeeze=False)[0], shrunk.items(), strict=True):
        long = max(image.shape) > 3 * min(image.shape)
        axes.imshow(image, MASK, vmin=0, vmax=brightest, interpolation="none", aspect="auto" if long else "equal")
        axes.set(title=method, xticks=[], yticks=[])
        axes.set_xlabel(f"{images[method].sum():,} weights, {images[method].mean():.2%}", fontsize=9)
        axes.spines[:].set(visible=True, color=GRID[0])  # where the mask is as dark as the page
    return figure


@matplotlib.rc_context(STYLE)
def density_over_time(records: Iterable[Record]) -> Figure:
    """The density of every layer from the start (0) to the last epoch, the mean of the seeds; a panel per method."""
    groups = _finished(records)
    figure, grid = _panels(len(groups), 2)
    for axes, (method, group) in zip(grid, groups.items(), strict=True):
        names, sizes, start = _layers(group, "initial_nnz")
        epochs = min(len(one.metrics) for one in group)
        path = np.mean([[line["nnz"] for line in one.metrics[:epochs]] for one in group], axis=0).reshape(epochs, -1)
        for i, name in enumerate(names):
            line = np.maximum([start[i], *path[:, i]], 0.5) / sizes[i]  # an empty layer would leave a logarithmic axis
            axes.plot(line, color=DEPTH(i / max(len(names) - 1, 1)), linewidth=1.4, label=name)
        axes.set_title(method)
        logarithmic(axes, percent=True)
    handles, labels = grid[0].get_legend_handles_labels()
    shown = some(len(labels))
    figure.legend([handles[i] for i in shown], [labels[i] for i in shown], loc="outside right upper", fontsize=9)
    return figure


@matplotlib.rc_context(STYLE)
def accuracy_over_epochs(records: Iterable[Record]) -> Figure:
    """Test accuracy after every epoch: mean of the seeds, band from worst to best; a panel per sparsity and start."""
    known = [one for one in distinct(records) if one.metrics]
    columns = {(one.run.start, one.run.sparsity): None for one in known if one.run.method != DENSE}
    order = sorted(columns, key=lambda column: ([*STARTS, column[0]].index(column[0]), column[1])) or [(DENSE, 0.0)]
    figure, grid = _panels(len(order), 3 if len({sparsity for _, sparsity in order}) > 2 else 2)
    for axes, (start, sparsity) in zip(grid, order, strict=True):
        own = [
            one for one in known if one.run.method == DENSE or (one.run.start, one.run.sparsity) == (start, sparsity)
        ]
        for method, group in _by_method(own).items():
            _curve(axes, method, group)
        axes.set_title(f"s={sparsity:g}, {STARTS.get(start, start)}")
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    legend = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(list(legend.values()), list(legend), loc="outside upper center", ncols=8, columnspacing=1.2)
    return figure


def pictures(records: Iterable[Record], layer: str | None = None) -> list[Picture]:
    """All figures that these records have something for, network by network, with the masks of ``layer``.

    Without a layer it is the third one, as in the paper; a network that does not have the layer shows its third too.
    """
    groups: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in entries(records):
        if entry.scope == "layer":
            groups[entry.data, entry.network].append(entry)
    names = {name: None for group in groups.values() for name in _layer_names(group)}
    if layer is not None and names:
        choose("layer", layer, names)
    return [picture for (data, network), group in groups.items() for picture in _pictures(data, network, group, layer)]


def _pictures(data: str, network: str, group: list[Entry], layer: str | None) -> Iterator[Picture]:
    slug, where = re.sub("[^a-z0-9.]+", "-", f"{data} {network}".lower()), f"{network} on {data}"
    if (shown := _column([entry for entry in group if entry.method != METHODS[DENSE]])) is not None:
        records = [one for entry in group if entry.column == shown for one in entry.records]
        column = f"{where}, s={shown[0]:g}, {STARTS.get(shown[1], shown[1])} start."
        about = (
            f"Density and number of active weights of each layer at the end of training, mean of the seeds. {column}"
        )
        yield Picture(f"layers-{slug}", f"Figure 2: weights by layer, {where}", about, layer_density(records))
        if any(_masks(members) for members in _by_method(records, MASKED).values()):
            names = _layer_names(group)
            chosen = layer if layer in names else names[min(2, len(names) - 1)]
            about = f"White: active weights. Outputs down, inputs across, each kernel a tile. First seed. {column}"
            title = f"Figure 3: masks of layer {chosen}, {where}"
            yield Picture(f"masks-{slug}", title, about, masks(records, chosen))
        about = f"Density of every layer after each epoch, from the start, mean of the seeds. {column}"
        yield Picture(f"density-{slug}", f"Density over time, {where}", about, density_over_time(records))
    if any(one.metrics for entry in group for one in entry.records):
        figure = accuracy_over_epochs(one for entry in group for one in entry.records)
        about = "Test accuracy after each epoch: mean of the seeds in a band from the worst to the best. Runs that are "
        about += "under way are shown as far as they are."
        yield Picture(f"accuracy-{slug}", f"Accuracy over epochs, {where}", about, figure)


def _by_method(records: Iterable[Record], only: Sequence[str] = ()) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for one in distinct(records):
        if not only or method_name(one.run) in only:
            groups[method_name(one.run)].append(one)
    return groups


def _finished(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Finished sparse runs by method."""
    return _by_method(one for one in records if one.result and one.run.method != DENSE)


def _column(group: Iterable[Entry]) -> Column | None:
    """The paper's column if a run of it is finished, else the one that most methods have finished."""
    methods = Counter(entry.column for entry in group if any(one.result for one in entry.records))
    return PAPER if PAPER in methods else max(methods, key=methods.__getitem__, default=None)


def _layers(group: Sequence[Record], count: str) -> tuple[list[str], NDArray[np.float64], NDArray[np.float64]]:
    """Names, sizes and the mean of a count, layer by layer."""
    found = [one.result["layers"] for one in group if one.result]
    counts = np.mean([[layer[count] for layer in layers] for layers in found], axis=0)
    return [layer["name"] for layer in found[0]], np.array([np.prod(x["shape"]) for x in found[0]], float), counts


def _layer_names(group: Iterable[Entry]) -> list[str]:
    finished = [one for entry in group for one in entry.records if one.result]
    return _layers(finished[:1], "nnz")[0] if finished else []


def _masks(group: Sequence[Record]) -> dict[str, NDArray[Any]]:
    """The topology of the first seed that has left one."""
    paths = [one.folder / "topology.safetensors" for one in group if one.result]
    return next((load_file(path) for path in paths if path.exists()), {})


def _panels(count: int, across: int) -> tuple[Figure, list[Axes]]:
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


def _curve(axes: Axes, method: str, group: Iterable[Record]) -> None:
    by_epoch: dict[int, list[float]] = defaultdict(list)
    for line in (line for one in group for line in one.metrics):
        by_epoch[line["epoch"]].append(line["accuracy"])
    epochs, look = sorted(by_epoch), _look(method)
    worst, mean, best = ([of(by_epoch[epoch]) for epoch in epochs] for of in (min, fmean, max))
    axes.fill_between(epochs, worst, best, color=look["color"], alpha=0.18, linewidth=0)
    axes.plot(epochs, mean, **look, markevery=max(len(epochs) // 8, 1), linewidth=1.4, label=method)


def _look(method: str) -> dict[str, Any]:
    colour, _, marker = LOOKS.get(method, OTHER)
    return {"color": colour, "marker": marker, "markersize": 4.5, "linestyle": "-" if marker else "--"}
