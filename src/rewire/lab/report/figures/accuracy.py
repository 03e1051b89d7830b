"""Test accuracy over the training."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from rewire.lab.report.groups import distinct
from rewire.lab.report.hover import describe_points, name_series, seeds_text
from rewire.lab.report.looks import start_position
from rewire.lab.report.pictures import Picture, Subject, by_method, curve_style, panels, register_figure
from rewire.lab.report.style import STYLE
from rewire.lab.results import Record
from rewire.lab.run import DENSE
from rewire.parts.start import start_label


@register_figure("accuracy", order=4)
def picture(subject: Subject) -> list[Picture]:
    """One picture as soon as a run has finished an epoch."""
    if not any(record.metrics for record in subject.records):
        return []
    about = (
        "Test accuracy after each epoch: mean of the seeds in a band from the worst to the best. Runs that are not "
        "finished are shown up to their last epoch."
    )
    figure = accuracy_over_epochs(subject.records)
    return [subject.picture("accuracy", "Accuracy over epochs", about, figure)]


@matplotlib.rc_context(STYLE)
def accuracy_over_epochs(records: Iterable[Record]) -> Figure:
    """Test accuracy over the epochs: mean of the seeds, band from worst to best; a panel per sparsity and start."""
    known = [record for record in distinct(records) if record.metrics]
    columns = {(record.run.start, record.run.sparsity): None for record in known if not record.run.is_dense}
    order = sorted(columns, key=lambda column: (start_position(column[0]), column[1])) or [(DENSE, 0.0)]
    figure, grid = panels(len(order), 3 if len({sparsity for _, sparsity in order}) > 2 else 2)
    for axes, (start, sparsity) in zip(grid, order, strict=True):
        own = [
            record
            for record in known
            if record.run.is_dense or (record.run.start, record.run.sparsity) == (start, sparsity)
        ]
        for method, group in by_method(own).items():
            _curve(axes, method, group)
        axes.set_title(f"s={sparsity:g}, {start_label(start)}")
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    legend = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(list(legend.values()), list(legend), loc="outside upper center", ncols=8, columnspacing=1.2)
    return figure


def _curve(axes: Axes, method: str, group: Iterable[Record]) -> None:
    by_epoch: dict[int, dict[int, float]] = defaultdict(dict)  # accuracy by seed
    for record in group:
        for line in (line for line in record.metrics if "accuracy" in line):
            by_epoch[line["epoch"]][record.run.seed] = line["accuracy"]
    epochs, style = sorted(by_epoch), curve_style(method)
    worst, mean, best = ([of(by_epoch[epoch].values()) for epoch in epochs] for of in (min, fmean, max))
    band = axes.fill_between(epochs, worst, best, color=style["color"], alpha=0.18, linewidth=0)
    name_series(band, method)
    (curve,) = axes.plot(epochs, mean, **style, markevery=max(len(epochs) // 8, 1), linewidth=1.4, label=method)
    texts = [
        f"{method}, epoch {epoch}: {value:.2%} ({seeds_text(by_epoch[epoch], '.2%')})"
        for epoch, value in zip(epochs, mean, strict=True)
    ]
    describe_points(curve, method, texts)
