"""Figure 2 of the paper: the density of each layer."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
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
    names, sizes, _ = layer_counts(next(iter(groups.values())), "nnz")
    starts = _starts(groups)
    figure, place, few = Figure(figsize=(WIDTH, 5.6)), np.arange(len(names)), len(names) <= NAMED
    above, below = figure.subplots(2, 1, sharex=True)
    for axes, scale, label in ((above, sizes, "density"), (below, np.ones(1), "active weights")):
        for pattern, (name, counts) in zip(cycle(("solid", "dotted", "dashed")), starts.items(), strict=False):
            axes.hlines(counts / scale, place - 0.42, place + 0.42, REFERENCE, pattern, linewidth=1.5, label=name)
        for i, (method, group) in enumerate(groups.items()):
            # Side by side, so that equal values stay visible.
            shift = (i - (len(groups) - 1) / 2) * 0.7 / len(groups) * few
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


def _starts(groups: Mapping[str, Sequence[Record]]) -> dict[str, NDArray[Any]]:
    """The counts of the start; where methods begin differently (some begin dense), a start for those that agree."""
    shared: dict[tuple[float, ...], list[str]] = {}
    for method, group in groups.items():
        shared.setdefault(tuple(layer_counts(group, "initial_nnz")[2]), []).append(method)
    alone = len(shared) == 1
    return {"start" if alone else f"start of {', '.join(names)}": np.array(counts) for counts, names in shared.items()}


def _texts(method: str, group: Sequence[Record], names: Sequence[str], sizes: NDArray[Any]) -> list[str]:
    """For each layer: its density, and the number of its weights seed by seed."""
    means = layer_counts(group, "nnz")[2]
    texts = []
    for i, name in enumerate(names):
        seeds = {record.run.seed: record.result["layers"][i]["nnz"] for record in group if record.result}
        density = f"{means[i] / sizes[i]:.3%}"
        texts.append(f"{method}, {name}: {density}, {means[i]:,.0f} weights ({seeds_text(seeds, ',')})")
    return texts
