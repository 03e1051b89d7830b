"""Curves of the results page: the loss around rewirings, and a layer that starts far too sparse."""

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeAlias

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rewire.lab.experiments.variants import STARVED_METHODS, starved_layer
from rewire.lab.report.findings import Study
from rewire.lab.report.looks import label_of, look_of_label, method_look, network_label
from rewire.lab.report.style import INK, STYLE, WIDTH
from rewire.lab.results import Record
from rewire.lab.run import Run

AROUND = 30  # steps before and after a rewiring
UNIFORM, STARVED = ", uniform start", ", starved start"  # behind the label of a method
Curve: TypeAlias = NDArray[np.float64]


@matplotlib.rc_context(STYLE)
def losses_figure(study: Study) -> Figure | None:
    """How the loss changes around rewirings, less the dense network's; mean and range over seeds, a panel a network."""
    panels: dict[str, dict[tuple[str, float], list[Curve]]] = defaultdict(lambda: defaultdict(list))
    dense = {_network(run): record for run, record in study.done.items() if run.is_dense and run.record_losses}
    for run, record in study.done.items():
        if run.record_losses and _network(run) in dense:
            around = losses_around_rewirings(record, dense[_network(run)])
            if around is not None:
                panels[_title(run)][method_look(run).label, run.sparsity].append(around)
    if not panels:
        return None
    figure, every = _row(len(panels))
    for axes, (title, curves) in zip(every, panels.items(), strict=True):
        for (label, sparsity), group in sorted(curves.items()):
            style = "-" if sparsity < 0.95 else "--"
            colour = look_of_label(label).light
            name = f"{label} {100 * sparsity:g} %"
            _band(axes, range(-AROUND, AROUND), group, colour, style, name)
        axes.axvline(-0.5, color=INK[0], linewidth=0.8)
        axes.set(title=title, xlabel="steps from a rewiring")
        axes.legend(fontsize=8.5)
    every[0].set_ylabel("change of the gap [nats]")
    return figure


def losses_around_rewirings(record: Record, dense: Record) -> Curve | None:
    """The mean over rewirings of how far the loss is above the dense network's, minus its mean before the rewiring.

    Both networks see the same batches, so the difference is free of what single batches add. The curve reaches from
    AROUND steps before a rewiring to as many after. The rewiring follows the backward pass of its step, so the first
    loss after it is the one of the next step.
    """
    if record.run.is_dense or record.run.every is None:
        return None
    excess = _losses(record) - _losses(dense)
    last = min(int(record.run.until * len(excess)), len(excess) - AROUND)
    steps = [step for step in range(record.run.every, last + 1, record.run.every) if step >= AROUND]
    windows = [excess[step - AROUND : step + AROUND] for step in steps]
    if not windows:
        return None
    mean: Curve = np.stack([window - window[:AROUND].mean() for window in windows]).mean(axis=0)
    return mean


def _losses(record: Record) -> Curve:
    return np.array([loss for line in record.metrics for loss in line.get("losses", ())], dtype=np.float64)


def _network(run: Run) -> tuple[str, str, float, int]:
    return run.data, run.model, run.width, run.seed


def _title(run: Run) -> str:
    return f"{label_of('model', run.model)} on {label_of('data', run.data)}"


def _row(panels: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, 3.2))
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


@matplotlib.rc_context(STYLE)
def recovery_figure(study: Study) -> Figure | None:
    """The weights of the layer that starts far too sparse, epoch by epoch; mean and range over seeds."""
    panels = recoveries(study)
    if not panels:
        return None
    figure, every = _row(len(panels))
    for axes, (title, curves) in zip(every, panels.items(), strict=True):
        for label, group in curves.items():
            plain = label.removesuffix(UNIFORM).removesuffix(STARVED)
            colour, style = look_of_label(plain).light, "--" if label.endswith(UNIFORM) else "-"
            epochs = range(len(group[0]))
            _band(axes, epochs, group, colour, style, label)
        axes.set(title=title, xlabel="epoch", ylim=(0, 1.35 * axes.get_ylim()[1]))  # room for the legend
        axes.legend(fontsize=8.5, loc="upper left", ncols=2)
    every[0].set_ylabel("weights of the layer")
    return figure


def recoveries(study: Study) -> dict[str, dict[str, list[Curve]]]:
    """By network: the counts of the layer that starves, for each method that starts so, and for GGR from uniform."""
    panels: dict[str, dict[str, list[Curve]]] = {}
    starved = {run: record for run, record in study.done.items() if run.method in STARVED_METHODS}
    for run, record in starved.items():
        title = f"{network_label(run.model, run.width)} on {label_of('data', run.data)}, {100 * run.sparsity:g} %"
        label = method_look(Run.from_dict({"method": STARVED_METHODS[run.method]})).label
        curves = panels.setdefault(title, {})
        curves.setdefault(label + STARVED, []).append(middle_layer(record))
        control = Run.from_dict(run.to_dict() | {"method": "ggr", "start": "uniform", "code": ()})
        if STARVED_METHODS[run.method] == control.method and control in study.done:
            curves.setdefault(label + UNIFORM, []).append(middle_layer(study.done[control]))
    return panels


def middle_layer(record: Record) -> Curve:
    """How many weights the layer has that starves in some runs: at the start, and after each epoch."""
    assert record.result is not None
    layers = record.result["layers"]
    index = starved_layer(len(layers))
    return np.array([layers[index]["initial_nnz"], *(line["nnz"][index] for line in record.metrics)], dtype=np.float64)


def _band(axes: Axes, places: range, group: Iterable[Curve], colour: str, style: str, label: str) -> None:
    """The mean of some curves, and the range of them."""
    values = np.stack(list(group))
    axes.plot(places, values.mean(axis=0), style, color=colour, linewidth=1.6, label=label)
    axes.fill_between(places, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
