"""The density of every layer over the training."""

from collections.abc import Iterable

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from rewire.lab.report.hover import describe_points
from rewire.lab.report.pictures import Picture, Subject, finished_by_method, layer_counts, panels, register_figure
from rewire.lab.report.style import DEPTH, STYLE, logarithmic, some
from rewire.lab.results import Record


@register_figure("density", order=3)
def picture(subject: Subject) -> list[Picture]:
    """One picture if a sparse run is finished."""
    if subject.column is None:
        return []
    about = "Density of every layer after each epoch, from the start, mean of the seeds."
    figure = density_over_time(subject.column_records)
    return [subject.picture("density", "Density over time", f"{about} {subject.column_title}", figure)]


@matplotlib.rc_context(STYLE)
def density_over_time(records: Iterable[Record]) -> Figure:
    """The density of every layer from the start (0) to the last epoch, the mean of the seeds; a panel per method."""
    groups = finished_by_method(records)
    figure, grid = panels(len(groups), 2)
    for axes, (method, group) in zip(grid, groups.items(), strict=True):
        names, sizes, start = layer_counts(group, "initial_nnz")
        epochs = min(len(record.metrics) for record in group)
        path = np.mean([[line["nnz"] for line in record.metrics[:epochs]] for record in group], axis=0).reshape(
            epochs, -1
        )
        for i, name in enumerate(names):
            densities = np.array([start[i], *path[:, i]]) / sizes[i]
            line = np.maximum(densities, 0.5 / sizes[i])  # zero is not on a logarithmic axis
            (curve,) = axes.plot(line, color=DEPTH(i / max(len(names) - 1, 1)), linewidth=1.4, label=name)
            seeds = ", ".join(str(record.run.seed) for record in group)
            texts = [
                f"{name}, epoch {epoch}: {value:.3%} (mean of seeds {seeds})" for epoch, value in enumerate(densities)
            ]
            describe_points(curve, name, texts)
        axes.set_title(method)
        logarithmic(axes, percent=True)
    handles, labels = grid[0].get_legend_handles_labels()
    shown = some(len(labels))
    figure.legend([handles[i] for i in shown], [labels[i] for i in shown], loc="outside right upper", fontsize=9)
    return figure
