"""The figures of the results page: what each claim rests on, and accuracy against the cost of training."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rewire.lab.report.claims import Claim
from rewire.lab.report.findings import CONFIRMED, CONTRADICTED, Answer, Effect, accuracy
from rewire.lab.report.looks import method_look
from rewire.lab.report.style import GRID, INK, STYLE, WIDTH, save
from rewire.lab.results import Record
from rewire.lab.run import Run

COLOURS = {CONFIRMED: "#00795a", CONTRADICTED: "#c2410c"}  # anything else is drawn in ink
FILLED = {"packed": True, "masked": False}


def save_figures(answers: Sequence[tuple[Claim, Answer]], records: Iterable[Record], folder: Path) -> list[str]:
    """Write the figures that there is something for, as PNG and SVG; returns their names."""
    figures = {"claims": claims_figure(answers), "costs": costs_figure(records)}
    made = {name: figure for name, figure in figures.items() if figure is not None}
    for name, figure in made.items():
        save(figure, folder / name)
    return list(made)


@matplotlib.rc_context(STYLE)
def claims_figure(answers: Sequence[tuple[Claim, Answer]]) -> Figure | None:
    """The effects of all claims that are measured in points of accuracy, with their intervals."""
    rows = [(claim.key, one) for claim, answer in answers for one in answer.effects if _is_drawn(one)]
    if not rows:
        return None
    figure = Figure(figsize=(WIDTH, 0.9 + 0.27 * len(rows)))
    axes = figure.subplots()
    axes.axvline(0, color=GRID[0], linewidth=1.2)
    for place, (_, one) in enumerate(rows):
        colour = COLOURS.get(one.verdict, INK[0])
        axes.plot([one.interval.low, one.interval.high], [place, place], color=colour, linewidth=1.6)
        axes.plot(one.interval.mean, place, "o", color=colour, markersize=5)
    axes.set_yticks(range(len(rows)), [f"{key}  {one.name} (n = {one.interval.n})" for key, one in rows], fontsize=8.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("points of accuracy, 95 % interval over seeds")
    return figure


def _is_drawn(one: Effect) -> bool:
    return one.unit == "points" and one.interval.n > 1


@matplotlib.rc_context(STYLE)
def costs_figure(records: Iterable[Record]) -> Figure | None:
    """Accuracy against training multiply-adds and against seconds of one core: a point for each configuration."""
    groups: dict[Run, list[Record]] = defaultdict(list)
    for one in records:
        if one.result is not None and one.run.data == "cifar100" and ":" not in one.run.method:
            groups[Run.from_dict(one.run.to_dict() | {"seed": 0})].append(one)
    if not groups:
        return None
    figure = Figure(figsize=(WIDTH, 3.4))
    left, right = figure.subplots(1, 2, sharey=True)
    for run, group in groups.items():
        macs = fmean(one.result["flops"]["training"] * run.batch_size for one in group if one.result) / 1e12
        seconds = fmean(sum(line.get("cpu_seconds", line["seconds"]) for line in one.metrics) for one in group)
        height = fmean(map(accuracy, group))
        _point(left, run, macs, height)
        _point(right, run, seconds, height)
    left.set(xlabel="training multiply-adds [10¹²]", ylabel="accuracy [%]", xscale="log")
    right.set(xlabel="seconds of one core", xscale="log")
    handles = {label: handle for handle, label in zip(*left.get_legend_handles_labels(), strict=True)}
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=7, fontsize=9)
    return figure


def _point(axes: Axes, run: Run, x: float, y: float) -> None:
    look, filled = method_look(run), FILLED.get(run.store, False)
    face = look.light if filled else "none"
    name = f"{look.label}, {run.store}" if not run.is_dense else look.label
    axes.plot(x, y, look.marker or "o", color=look.light, markerfacecolor=face, markersize=5, linestyle="", label=name)
