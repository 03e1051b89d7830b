"""Pictures of one network: layer densities, masks with the histogram of their neurons, densities over time."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from rewire.analysis.density import masks
from rewire.lab.report.style import (
    ACCENT,
    DEPTH,
    GRID,
    MASK,
    NAMED,
    REFERENCE,
    STYLE,
    WIDTH,
    logarithmic,
    save,
    shrink,
    some,
    tile,
)
from rewire.lab.training.network import Trained

BINS = 60  # of a histogram, at most


def draw(trained: Trained, folder: Path) -> list[Path]:
    """Write every picture into a folder, as PNG and SVG; return the paths."""
    figures = {"densities": densities(trained), "over-time": over_time(trained)}
    figures |= {f"mask-{name}": mask(trained, name) for name in masks(trained.model)}
    return [path for name, figure in figures.items() for path in save(figure, folder / name)]


@matplotlib.rc_context(STYLE)
def densities(trained: Trained) -> Figure:
    """The density of every layer, at the start and now."""
    layer_masks, start = masks(trained.model), trained.state["initial"]
    place = np.arange(len(layer_masks))
    figure = Figure(figsize=(WIDTH, 3.6))
    axes = figure.subplots()
    axes.bar(place, [float(mask.float().mean()) for mask in layer_masks.values()], 0.7, color=ACCENT[0], label="now")
    first = [start[name] / mask.numel() for name, mask in layer_masks.items()]
    axes.hlines(first, place - 0.42, place + 0.42, REFERENCE, linewidth=1.5, label="start")
    if len(layer_masks) <= NAMED:
        axes.set_xticks(place, list(layer_masks), rotation=0 if max(map(len, layer_masks)) < 4 else 35, ha="center")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set(xlabel="layer" if len(layer_masks) <= NAMED else "layer, from the input", ylabel="density")
    axes.grid(visible=False, axis="x")
    figure.suptitle(trained.run.label, fontsize=10.5)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@matplotlib.rc_context(STYLE)
def mask(trained: Trained, name: str) -> Figure:
    """A mask, white where a weight exists, beside a histogram of the number of weights per neuron."""
    mask_array = masks(trained.model)[name].numpy()
    counts = mask_array.reshape(len(mask_array), -1).sum(1)
    figure = Figure(figsize=(WIDTH, 3.8))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    image = shrink(tile(mask_array))
    left.imshow(image, MASK, vmin=0, vmax=image.max() or 1.0, interpolation="none", aspect="auto")
    left.set(xticks=[], yticks=[], xlabel="inputs", ylabel="neurons")
    left.set_title(f"{mask_array.sum():,} of {mask_array.size:,} weights ({mask_array.mean():.2%})", fontsize=9.5)
    left.spines[:].set(visible=True, color=GRID[0])
    right.hist(counts, bins=edges(int(counts.max())), color=ACCENT[0], rwidth=0.86)
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    right.grid(visible=False, axis="x")
    right.set(xlabel="weights of a neuron", ylabel="neurons")
    right.set_title(f"{int((counts == 0).sum()):,} of {len(counts):,} neurons are empty", fontsize=9.5)
    shape = "x".join(map(str, mask_array.shape))
    figure.suptitle(f"layer {name} ({shape}) of {trained.run.label}", fontsize=10.5)
    return figure


def edges(largest: int) -> NDArray[np.float64]:
    """Bin edges of a histogram of whole numbers from 0: every bin covers equally many, and there are few bins.

    >>> edges(3)
    array([-0.5,  0.5,  1.5,  2.5,  3.5])
    """
    step = -(-(largest + 1) // BINS)
    return np.arange(0, largest + step + 1, step, dtype=np.float64) - 0.5


@matplotlib.rc_context(STYLE)
def over_time(trained: Trained) -> Figure:
    """The density of every layer after each epoch."""
    start = trained.state["initial"]
    sizes = {name: mask.numel() for name, mask in masks(trained.model).items()}
    path = np.array([list(start.values()), *(line["nnz"] for line in trained.state["metrics"])], dtype=float)
    figure = Figure(figsize=(WIDTH, 3.6))
    axes = figure.subplots()
    for i, name in enumerate(start):
        line = np.maximum(path[:, i], 0.5) / sizes[name]  # zero is not on a logarithmic axis
        axes.plot(line, color=DEPTH(i / max(len(start) - 1, 1)), linewidth=1.4, label=name)
    logarithmic(axes, percent=True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="epoch", ylabel="density")
    figure.suptitle(trained.run.label, fontsize=10.5)
    handles, labels = axes.get_legend_handles_labels()
    shown = some(len(labels))
    legend = [handles[i] for i in shown], [labels[i] for i in shown]
    figure.legend(*legend, loc="outside right upper", fontsize=9, title="layer")
    return figure
