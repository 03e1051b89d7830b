"""Figure 2 of the paper: the density of each layer."""

from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rewire.lab.report.hover import describe_points, seeds_text
from rewire.lab.report.pictures import Picture, Subject, curve_style, finished_by_method, layer_counts, register_figure
from rewire.lab.report.style import NAMED, REFERENCE, STYLE, WIDTH, logarithmic
from rewire.lab.results import Record


@register_figure("layers", order=1)
def picture(subject: Subject) -> list[Picture]:
    """One picture if a sparse run is finished."""
    if subject.column is None:
        return []
    about = "Density and number of active weights of each layer at the end of training, mean of the seeds."
    figure = layer_density(subject.column_records)
    return [subject.picture("layers", "Figure 2: weights by layer", f"{about} {subject.column_title}", figure)]


@matplotlib.rc_context(STYLE)
def layer_density(records: Iterable[Record]) -> Figure:
    """Density and number of active weights of each layer at the end, per method, and at the start (Figure 2)."""
    groups = finished_by_method(records)
    names, sizes, start = layer_counts(next(iter(groups.values())), "initial_nnz")
    figure, place, few = Figure(figsize=(WIDTH, 5.6)), np.arange(len(names)), len(names) <= NAMED
    above, below = figure.subplots(2, 1, sharex=True)
    for axes, scale, label in ((above, sizes, "density"), (below, np.ones(1), "active weights")):
        axes.hlines(start / scale, place - 0.42, place + 0.42, REFERENCE, linewidth=1.5, label="start")
        for i, (method, group) in enumerate(groups.items()):
            shift = (
                (i - (len(groups) - 1) / 2) * 0.7 / len(groups) * few
            )  # side by side, so that equal values stay visible
            style = curve_style(method) | ({"linestyle": "", "markersize": 7} if few else {"linewidth": 1})
            (curve,) = axes.plot(place + shift, layer_counts(group, "nnz")[2] / scale, **style, label=method)
            describe_points(curve, method, _texts(method, group, names, sizes))
        logarithmic(axes, percent=label == "density")
        axes.set_ylabel(label)
        axes.grid(visible=not few, axis="x")
    below.set_xlabel("" if few else "layer, from the input")
    if few:
        below.set_xticks(place, names, rotation=35, ha="right", rotation_mode="anchor")
    figure.legend(*above.get_legend_handles_labels(), loc="outside upper center", ncols=8, columnspacing=1.2)
    return figure


def _texts(method: str, group: Sequence[Record], names: Sequence[str], sizes: NDArray[Any]) -> list[str]:
    """For each layer: its density, and the number of its weights seed by seed."""
    means = layer_counts(group, "nnz")[2]
    texts = []
    for i, name in enumerate(names):
        seeds = {one.run.seed: one.result["layers"][i]["nnz"] for one in group if one.result}
        density = f"{means[i] / sizes[i]:.3%}"
        texts.append(f"{method}, {name}: {density}, {means[i]:,.0f} weights ({seeds_text(seeds, ',')})")
    return texts
