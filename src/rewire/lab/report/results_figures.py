"""The figures of the results page: what methods reach, what each claim rests on, and what training costs."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from rewire.core.named import Look
from rewire.lab.names import DENSE_LOOK
from rewire.lab.report.claims import Claim
from rewire.lab.report.curve_figures import losses_figure, recovery_figure
from rewire.lab.report.findings import (
    FEWEST_SEEDS,
    POINTS,
    UNDECIDED,
    Answer,
    Effect,
    Study,
    accuracy,
    seconds_on,
)
from rewire.lab.report.looks import look_of_label, method_look, method_position, network_label
from rewire.lab.report.statistics import ENOUGH_SEEDS, mean_interval
from rewire.lab.report.style import GRID, INK, STYLE, WIDTH, save
from rewire.lab.run import Run

COMPARED, STARTS = ("set", "rigl", "dsr", "ggr"), {"erk": -0.12, "uniform": 0.12}  # starts: places beside each other
BESIDE = 0.1  # where the seeds stand beside their mean
IN_A_ROW = 3  # networks
DENSE_LINE: dict[str, Any] = {"color": DENSE_LOOK.light, "linewidth": 1.2, "linestyle": "--"}
LARGE = 15  # points: effects beyond would squeeze the others
HOLLOW = "hollow: dense tensors (dense, masked)"


def save_figures(answers: Sequence[tuple[Claim, Answer]], study: Study, folder: Path) -> list[str]:
    """Write the figures that there is something for, as PNG and SVG; returns their names."""
    figures = {
        "accuracy": accuracy_figure(study),
        "claims": claims_figure(answers),
        "costs": costs_figure(study),
        "losses": losses_figure(study),
        "recovery": recovery_figure(study),
    }
    drawn_figures = {name: figure for name, figure in figures.items() if figure is not None}
    for name, figure in drawn_figures.items():
        save(figure, folder / name)
    return list(drawn_figures)


@matplotlib.rc_context(STYLE)
def accuracy_figure(study: Study) -> Figure | None:
    """What the paper's methods reach from both starts, with intervals over seeds; a panel for each network."""
    panels = accuracies(study)
    if not panels:
        return None
    columns = min(len(panels), IN_A_ROW)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(min(WIDTH, 4.2 * columns), 0.5 + 2.8 * rows))
    every = figure.subplots(rows, columns, squeeze=False).flat
    dense = dense_accuracies(study)
    # The panels come first: zip then takes no axes too many from the iterator.
    for (title, cells), axes in zip(panels.items(), every, strict=False):
        labels = sorted({label for label, _ in cells}, key=method_position)
        for (label, start), values in cells.items():
            interval, place = mean_interval(values), labels.index(label) + STARTS[start]
            colour = look_of_label(label).light
            axes.plot([place, place], [max(interval.low, 0), min(interval.high, 100)], color=colour, linewidth=1.6)
            axes.plot([place + BESIDE] * len(values), values, ".", color=colour, markersize=3)
            axes.plot(place, interval.mean, "o", color=colour, markersize=6, markerfacecolor=_face(start, colour))
        if title in dense:
            axes.axhline(dense[title], **DENSE_LINE)
        axes.set_xticks(range(len(labels)), labels)
        axes.set(title=title.replace(", ", "\n"), xlim=(-0.5, len(labels) - 0.5))
        axes.grid(visible=False, axis="x")
    for axes in every:
        axes.set_axis_off()
    figure.supylabel("accuracy [%]", fontsize=10)
    keys = [
        Line2D([], [], marker="o", linestyle="", color=INK[0], markerfacecolor=_face(start, INK[0])) for start in STARTS
    ]
    names = ["from an ERK start", "from a uniform start"]
    if dense:
        keys.append(Line2D([], [], **DENSE_LINE))
        names.append("the same network, dense")
    figure.legend(keys, names, loc="outside upper center", ncols=len(keys), fontsize=9)
    return figure


def _face(start: str, colour: str) -> str:
    return colour if start == "erk" else "white"


def accuracies(study: Study) -> dict[str, dict[tuple[str, str], list[float]]]:
    """By network and sparsity: what the compared methods reach from a start, one value a seed.

    A start is shown once every compared method has ``ENOUGH_SEEDS`` seeds from it, or all of a plan with fewer.
    """
    panels: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for run, record in study.compared_runs().items():
        if run.method in COMPARED and run.growth == Run.growth and run.scope == Run.scope and run.start in STARTS:
            panels[_panel(run)][method_look(run).label, run.start].append(accuracy(record))
    needed = max(FEWEST_SEEDS, min(ENOUGH_SEEDS, len({run.seed for run in study.plan})))
    return {title: shown for title, cells in panels.items() if (shown := _complete_starts(cells, needed))}


def dense_accuracies(study: Study) -> dict[str, float]:
    """What the dense network of each panel reaches on average."""
    titles = {_panel(run): run for run in study.compared_runs() if run.method in COMPARED}
    reached: dict[str, list[float]] = defaultdict(list)
    for run, record in study.compared_runs().items():
        for title, sparse in titles.items() if run.is_dense else ():
            if (run.model, run.width) == (sparse.model, sparse.width):
                reached[title].append(accuracy(record))
    return {title: fmean(values) for title, values in reached.items()}


def _panel(run: Run) -> str:
    return f"{network_label(run.model, run.width)}, {100 * run.sparsity:g} % sparse"


def _complete_starts(cells: Mapping[tuple[str, str], list[float]], needed: int) -> dict[tuple[str, str], list[float]]:
    """The cells of the starts from which all compared methods have so many seeds."""
    methods = Counter(start for (_, start), values in cells.items() if len(values) >= needed)
    return {key: values for key, values in cells.items() if methods[key[1]] == len(COMPARED)}


@matplotlib.rc_context(STYLE)
def claims_figure(answers: Sequence[tuple[Claim, Answer]]) -> Figure | None:
    """The effects of decided claims in points of accuracy, large ones apart.

    Each is shown above the bound that it has to exceed. Filled: the interval is on one side of it.
    """
    decided = [(claim, answer) for claim, answer in answers if answer.verdict != UNDECIDED]
    rows = [(claim.key, effect) for claim, answer in decided for effect in answer.effects if effect.unit == POINTS]
    small = [row for row in rows if abs(row[1].interval.mean) <= LARGE]
    panels = [panel for panel in (small, [row for row in rows if row not in small]) if panel]
    if not panels:
        return None
    figure = Figure(figsize=(WIDTH, 0.9 + 0.27 * len(rows) + 0.3 * len(panels)))
    every = figure.subplots(len(panels), 1, squeeze=False, height_ratios=[len(panel) + 1 for panel in panels]).flat
    for axes, panel in zip(every, panels, strict=True):
        _effects(axes, panel)
    figure.supxlabel("points of accuracy above the bound of the claim, 95 % interval over seeds", fontsize=10)
    return figure


def _effects(axes: Axes, rows: Sequence[tuple[str, Effect]]) -> None:
    """The effects of some claims, one below the other."""
    axes.axvline(0, color=GRID[0], linewidth=1.2)
    for place, (_, effect) in enumerate(rows):
        mean, low, high = (value - effect.above for value in (effect.interval.mean, *effect.interval.bounds))
        axes.plot([low, high], [place, place], color=INK[0], linewidth=1.6)
        face = INK[0] if low > 0 or high < 0 else "white"
        axes.plot(mean, place, "o", color=INK[0], markersize=5, markerfacecolor=face)
    names = [f"{key}  {effect.name} (n = {effect.interval.n})" for key, effect in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)


@matplotlib.rc_context(STYLE)
def costs_figure(study: Study) -> Figure | None:
    """Accuracy against training multiply-adds and against seconds of one core: a point for each configuration.

    The network is the one that most configurations train; dense ones of other widths are shown beside it. Seconds are
    those of the processor that carried out most runs.
    """
    every = study.main_configurations()
    if not every:
        return None
    (model, width), _ = Counter((run.model, run.width) for run in every).most_common(1)[0]
    shown = {run: own for run, own in every.items() if run.model == model and run.scope == Run.scope}
    groups = {run: own for run, own in shown.items() if run.is_dense or run.width == width}
    cpu = study.cpus()[0]
    figure = Figure(figsize=(WIDTH, 3.8))
    left, right = figure.subplots(1, 2, sharey=True)
    for run, group in groups.items():
        macs = fmean(record.result["flops"]["training"] * run.batch_size for record in group if record.result) / 1e12
        seconds = seconds_on(cpu, group)
        height = fmean(map(accuracy, group))
        _point(left, run, macs, height)
        if seconds:
            _point(right, run, fmean(seconds), height)
    left.set(xlabel="training multiply-adds [10¹²]", ylabel="accuracy [%]", xscale="log")
    right.set(xlabel=f"seconds of one core of {cpu}", xscale="log")
    for axes in (left, right):
        axes.margins(x=0.2)  # room for the widths beside the dense points
        _plain_numbers(axes)
    figure.legend(handles=_legend(map(method_look, groups)), loc="outside upper center", ncols=5, fontsize=9)
    return figure


def _plain_numbers(axes: Axes) -> None:
    """A few round numbers on a logarithmic axis, written without powers."""
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _point(axes: Axes, run: Run, x: float, y: float) -> None:
    look = method_look(run)
    face = "none" if run.store == Run.store else look.light  # hollow: every weight is stored
    axes.plot(x, y, _marker(look), color=look.light, markerfacecolor=face, markersize=5, linestyle="")
    if run.is_dense:
        axes.annotate(f"x{run.width:g}", (x, y), (6, -3), textcoords="offset points", fontsize=8, color=look.light)


def _legend(looks: Iterable[Look]) -> list[Line2D]:
    """A marker for each method, in the order of tables, and one that explains hollow markers."""
    ordered = sorted(set(looks), key=lambda look: method_position(look.label))
    keys = [Line2D([], [], marker=_marker(look), linestyle="", color=look.light, label=look.label) for look in ordered]
    hollow = Line2D([], [], marker="o", linestyle="", color=INK[0], markerfacecolor="none", label=HOLLOW)
    return [*keys, hollow]


def _marker(look: Look) -> str:
    return look.marker or "o"
