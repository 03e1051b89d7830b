"""Sections of the results page: what would make GGR better, transformers, a peer's code, and what training costs."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rewire.lab.experiments.studies import better
from rewire.lab.experiments.studies.connected import START
from rewire.lab.experiments.studies.transformers import NETWORKS as TRANSFORMERS
from rewire.lab.report.findings import BySeed, Study, accuracy, difference, seconds_on
from rewire.lab.report.groups import without_unused
from rewire.lab.report.looks import label_of, method_look, network_label
from rewire.lab.report.statistics import Interval, mean_interval
from rewire.lab.results import Record
from rewire.lab.run import DENSE, Run
from rewire.parts.start import start_label

OUTSTANDING = "Undecided: runs outstanding.\n"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int) -> list[str]:
    """The lines of a table whose first columns are text and whose others are numbers."""
    rule = ["---"] * text_columns + ["--:"] * (len(heads) - text_columns)
    return ["| " + " | ".join(row) + " |" for row in (heads, rule, *rows)]


def bounds(interval: Interval) -> str:
    """The interval and the number of seeds in words."""
    if interval.n < 2:
        return "one seed, no interval"
    return f"{interval.low:+z.2f} to {interval.high:+z.2f}; n = {interval.n}"


def columns_of(interval: Interval, mark: str = "") -> list[str]:
    """Mean, interval and n as three cells of a table."""
    limits = f"{interval.low:+z.2f} to {interval.high:+z.2f}" if interval.n > 1 else "·"
    return [f"{interval.mean:+z.2f}{mark}", limits, str(interval.n)]


def better_section(study: Study) -> str:
    """Each change of GGR on the digits less GGR itself, and its rivals less GGR with the same start."""
    title, base = "### What would make GGR better?\n", _values(study, better.BASE)
    if not base:
        return f"{title}\n{OUTSTANDING}"
    count, large_base = len(better.CHANGES), _values(study, better.LARGE)
    about = (
        f"On the digits ({_setting(better.BASE)}), one setting changed at a time, less GGR as it is "
        f"({fmean(base.values()):.2f} % over {len(base)} seeds). Paired by seed, t intervals; * also excludes zero at "
        f"the level that allows for all {count} comparisons (Bonferroni). Some changes were made on CIFAR-100 too "
        f"({_setting(better.LARGE)}); starts and shares there are the runs of claims b and d and of connected starts.\n"
    )
    rows = []
    for name, change in better.CHANGES.items():
        if gaps := _gaps(study, replace(better.BASE, **change), base):
            mark = "\\*" if mean_interval(gaps, 1 - 0.05 / count).excludes_zero else ""
            beside = ["·"] * 3
            if name in better.ON_LARGE:
                on_large = _gaps(study, replace(better.LARGE, **better.ON_LARGE[name]), large_base)
                beside = columns_of(mean_interval(on_large)) if on_large else beside
            rows.append([name, *columns_of(mean_interval(gaps), mark), *beside])
    heads = ["change", "on digits", "95 % interval", "seeds", "on CIFAR-100", "95 % interval", "seeds"]
    lines = [title, about, *markdown(heads, rows, 1)]
    lines += ["\nIts rivals in the same setting, less GGR with the same start:\n"]
    return "\n".join([*lines, *_rivals(study)]) + "\n"


def _setting(run: Run) -> str:
    """Network, sparsity and start in words."""
    return f"{network_label(run.model, run.width)}, {100 * run.sparsity:g} %, {run.start} start"


def _gaps(study: Study, run: Run, base: BySeed) -> list[float]:
    """What exactly these settings gain over others, seed by seed."""
    return list(difference(_values(study, run), base).values())


def _rivals(study: Study) -> list[str]:
    rows = []
    for start in (better.BASE.start, START):
        own = _values(study, replace(better.BASE, start=start))
        for name in better.RIVALS:
            run = replace(better.BASE, method=name, start=start)
            if gaps := _gaps(study, run, own):
                rows.append([method_look(run).label, start_label(start), *columns_of(mean_interval(gaps))])
    return markdown(["rival", "start", "difference", "95 % interval", "seeds"], rows, 2)


def _values(study: Study, run: Run) -> BySeed:
    """Accuracies of exactly these settings, by seed."""
    bare = without_unused(run)
    cell = {field.name: getattr(bare, field.name) for field in fields(Run) if field.name not in ("seed", "code")}
    return study.values(cell)


def transformers_section(study: Study, scale: str) -> str:
    """Accuracy and loss of the transformers, and GGR less RigL."""
    title, rows, gaps = "### Transformers with AdamW\n", [], []
    for network in TRANSFORMERS[scale]:
        cell = {"data": network.data, "model": network.model}
        name = f"{label_of('model', network.model)} on {label_of('data', network.data)}"
        for sparsity, method in ((0.0, DENSE), *((s, m) for s in (0.9, 0.97) for m in ("rigl", "ggr"))):
            own = {**cell, "sparsity": sparsity, "method": method}
            values, losses = study.values(own), study.values(own, _test_loss)
            if values:
                label = method_look(Run.from_dict({"method": method})).label
                numbers = [f"{fmean(values.values()):.2f}", f"{fmean(losses.values()):.3f}", str(len(values))]
                rows.append([name, label, f"{100 * sparsity:g} %", *numbers])
        for sparsity in (0.9, 0.97):
            ours, theirs = (study.values({**cell, "sparsity": sparsity, "method": one}) for one in ("ggr", "rigl"))
            if gap := list(difference(ours, theirs).values()):
                interval = mean_interval(gap)
                gaps.append(f"{name} at {100 * sparsity:g} %: {interval.mean:+z.2f} points ({bounds(interval)})")
    if not rows:
        return f"{title}\n{OUTSTANDING}"
    heads = ["network", "method", "sparsity", "accuracy [%]", "test loss", "seeds"]
    compared = f"\nGGR less RigL, paired by seed: {'; '.join(gaps) or 'no pair of runs yet'}.\n"
    return "\n".join([title, *markdown(heads, rows, 3), compared])


def _test_loss(record: Record) -> float:
    return float(record.metrics[-1]["test_loss"])


def peer_section(path: Path) -> str:
    """A peer's own code beside ours."""
    title = "### A peer's own code: rigl-torch 0.5.2\n"
    if not path.exists():
        return f"{title}\n{OUTSTANDING[:-2]} (`python -m benchmarks.peer_rigl`).\n"
    by_arm: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for line in map(json.loads, path.read_text().splitlines()):
        by_arm[line["arm"]][line["run"]["seed"]] = line
    theirs, *ours = by_arm
    run = Run.from_dict(by_arm[theirs][0]["run"])
    about = (
        f"{label_of('model', run.model)} at width {run.width:g}, {100 * run.sparsity:g} %, first layer dense, same "
        "data, recipe and seeds (`python -m benchmarks.peer_rigl`); seconds are those of one core.\n"
    )
    values = {arm: {seed: 100 * one["accuracy"] for seed, one in own.items()} for arm, own in by_arm.items()}
    rows = []
    for arm, own in by_arm.items():
        seconds = median(one["cpu_seconds_per_epoch"] for one in own.values())
        rows.append([arm, f"{fmean(values[arm].values()):.2f}", f"{seconds:.1f}", str(len(own))])
    intervals = {arm: mean_interval(list(difference(values[arm], values[theirs]).values())) for arm in ours}
    gaps = [f"{arm} less {theirs}: {one.mean:+z.2f} points ({bounds(one)})" for arm, one in intervals.items()]
    table = markdown(["code", "accuracy [%]", "seconds per epoch", "seeds"], rows, 1)
    return "\n".join([title, about, *table, f"\n{'; '.join(gaps) or 'Ours is outstanding'}.\n"])


def costs_section(study: Study) -> str:
    """Accuracy, multiply-adds and seconds of one core, for every configuration of the study's main data set."""
    groups = study.main_configurations()
    title = "## What it costs\n"
    if not groups:
        return f"{title}\n{OUTSTANDING}"
    cpus = study.cpus()
    about = (
        "Training multiply-adds as RigL's paper counts them, and seconds of one core, evaluation included. Compare "
        "seconds of one processor only.\n"
    )
    heads = ["network", "method", "sparsity", "start", "store", "accuracy [%]", "seeds", "10¹² multiply-adds"]
    rows = sorted(_cost(run, group, cpus) for run, group in groups.items())
    seconds = [f"seconds, {cpu}" for cpu in cpus]
    return "\n".join([title, about, *markdown([*heads, "of dense", *seconds], rows, 5)]) + "\n"


def _cost(run: Run, group: Sequence[Record], cpus: Iterable[str]) -> list[str]:
    flops = [record.result["flops"] for record in group if record.result]
    network = f"{label_of('model', run.model)} x{run.width:g}"
    method = method_look(run).label + (", global drop" if run.scope != Run.scope else "")
    where = ["·"] * 3 if run.is_dense else [f"{100 * run.sparsity:g} %", start_label(run.start), run.store]
    return [
        network,
        method,
        *where,
        f"{fmean(map(accuracy, group)):.2f}",
        str(len(group)),
        f"{fmean(one['training'] * run.batch_size for one in flops) / 1e12:.1f}",
        f"{fmean(one['training_ratio'] for one in flops):.3f}",
        *(f"{fmean(seconds):.0f}" if (seconds := seconds_on(cpu, group)) else "·" for cpu in cpus),
    ]
