"""Sections of the results page beyond the paper: what would make GGR better, transformers, and a peer's code."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rewire.lab.experiments.studies import better
from rewire.lab.experiments.studies.connected import START
from rewire.lab.experiments.studies.transformers import NETWORKS as TRANSFORMERS
from rewire.lab.report.findings import BySeed, Study, difference
from rewire.lab.report.groups import without_unused
from rewire.lab.report.looks import label_of, method_look, setting
from rewire.lab.report.results_format import OUTSTANDING, bounds, columns_of, markdown, number
from rewire.lab.report.statistics import mean_interval, paired_difference
from rewire.lab.results import Record
from rewire.lab.run import DENSE, Run
from rewire.parts.start import start_label

TRANSFORMER_SPARSITIES = (0.9, 0.97)


def better_section(study: Study) -> str:
    """Each change of GGR on the digits minus GGR itself, and its rivals minus GGR with the same start."""
    title, base = "### What would make GGR better?\n", _values(study, better.BASE)
    if not base:
        return f"{title}\n{OUTSTANDING}"
    count, large_base = len(better.CHANGES), _values(study, better.LARGE)
    about = (
        f"On the digits ({_of(better.BASE)}), one setting changed at a time, minus GGR as it is "
        f"({fmean(base.values()):.2f} % over {len(base)} seeds). Paired by seed, t intervals; * also excludes zero at "
        f"the level that allows for all {count} comparisons (Bonferroni). Some changes were made on CIFAR-100 too "
        f"({_of(better.LARGE)}); starts and shares there are the runs of claims b and d and of connected starts.\n"
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
    lines += ["\nIts rivals on the digits, minus GGR with the same start:\n", *_rivals(study)]
    if rows := _rivals_on_large(study):
        heads = ["rival", "rewired", "difference", "95 % interval", "seeds"]
        lines += ["\nIts rivals on CIFAR-100, minus GGR with the same schedule:\n", *markdown(heads, rows, 2)]
    return "\n".join(lines) + "\n"


def _of(run: Run) -> str:
    return setting(run.model, run.width, run.sparsity, run.start)


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


def _rivals_on_large(study: Study) -> list[list[str]]:
    rows = []
    for schedule, every in better.SCHEDULES.items():
        own = _values(study, replace(better.LARGE, every=every))
        for name in better.RIVALS_ON_LARGE:
            run = replace(better.LARGE, method=name, every=every)
            if gaps := _gaps(study, run, own):
                rows.append([method_look(run).label, schedule, *columns_of(mean_interval(gaps))])
    return rows


def _values(study: Study, run: Run) -> BySeed:
    """Accuracies of exactly these settings, by seed."""
    bare = without_unused(run)
    cell = {field.name: getattr(bare, field.name) for field in fields(Run) if field.name not in ("seed", "code")}
    return study.values(cell)


def transformers_section(study: Study, scale: str) -> str:
    """Accuracy and loss of the transformers, and GGR minus RigL."""
    title, networks = "### Transformers with AdamW\n", TRANSFORMERS[scale]
    rows = [row for network in networks for row in _reached(study, network)]
    gaps = [row for network in networks for row in _ggr_minus_rigl(study, network)]
    if not rows:
        return f"{title}\n{OUTSTANDING}"
    about = "The accuracy of GPT is that of the next character. Losses are cross-entropies on the test set, in nats.\n"
    heads = ["network", "method", "sparsity", "accuracy [%]", "loss", "seeds"]
    lines = [title, about, *markdown(heads, rows, 3)]
    heads = ["network", "sparsity", "accuracy [points]", "95 % interval", "loss", "95 % interval", "seeds"]
    compared = ["\nGGR minus RigL, paired by seed; a lower loss is better:\n", *markdown(heads, gaps, 2)]
    return "\n".join(lines + (compared if gaps else [])) + "\n"


def _reached(study: Study, network: Run) -> Iterator[list[str]]:
    """What each method reaches on one transformer."""
    for sparsity, method in ((0.0, DENSE), *((s, m) for s in TRANSFORMER_SPARSITIES for m in ("rigl", "ggr"))):
        cell = {"data": network.data, "model": network.model, "sparsity": sparsity, "method": method}
        values, losses = study.values(cell), study.values(cell, _test_loss)
        if values:
            label = method_look(Run.from_dict({"method": method})).label
            loss = f"{fmean(losses.values()):.3f}" if losses else "·"
            accuracy_reached = f"{fmean(values.values()):.2f}"
            yield [_transformer(network), label, f"{100 * sparsity:g} %", accuracy_reached, loss, str(len(values))]


def _ggr_minus_rigl(study: Study, network: Run) -> Iterator[list[str]]:
    """The differences between the methods on one transformer, at each sparsity."""
    for sparsity in TRANSFORMER_SPARSITIES:
        cell = {"data": network.data, "model": network.model, "sparsity": sparsity}
        ggr, rigl = ({**cell, "method": method} for method in ("ggr", "rigl"))
        gap = paired_difference(study.values(ggr), study.values(rigl))
        loss_gap = paired_difference(study.values(ggr, _test_loss), study.values(rigl, _test_loss))
        if gap is not None and loss_gap is not None:
            by_loss = [f"{loss_gap.mean:+z.3f}", f"{loss_gap.low:+z.3f} to {loss_gap.high:+z.3f}"]
            yield [_transformer(network), f"{100 * sparsity:g} %", *columns_of(gap)[:2], *by_loss, str(gap.n)]


def _transformer(network: Run) -> str:
    return f"{label_of('model', network.model)} on {label_of('data', network.data)}"


def _test_loss(record: Record) -> float | None:
    """The loss on the test set after the last epoch; a run that diverged has none."""
    return record.metrics[-1].get("test_loss")


def peer_section(path: Path) -> str:
    """A peer's own code beside ours."""
    title = "### A peer's own code: rigl-torch 0.5.2\n"
    if not path.exists() or not (lines := [json.loads(line) for line in path.read_text().splitlines()]):
        return f"{title}\n{OUTSTANDING[:-2]} (`python -m benchmarks.peer_rigl`).\n"
    by_arm: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for line in lines:
        by_arm[line["arm"]][line["run"]["seed"]] = line
    theirs, *ours = by_arm
    run = Run.from_dict(lines[0]["run"])
    about = (
        f"{label_of('model', run.model)} at width {run.width:g}, {100 * run.sparsity:g} %, first layer dense, same "
        "data, recipe and seeds (`python -m benchmarks.peer_rigl`); seconds are those of one core.\n"
    )
    values = {arm: {seed: 100 * line["accuracy"] for seed, line in own.items()} for arm, own in by_arm.items()}
    rows = []
    for arm, own in by_arm.items():
        seconds = median(line["cpu_seconds_per_epoch"] for line in own.values())
        rows.append([arm, f"{fmean(values[arm].values()):.2f}", f"{seconds:.1f}", str(len(own))])
    gaps = [
        f"{arm} minus {theirs}: {number(interval.mean)} points ({bounds(interval)})"
        for arm in ours
        if (interval := paired_difference(values[arm], values[theirs])) is not None
    ]
    table = markdown(["code", "accuracy [%]", "seconds per epoch", "seeds"], rows, 1)
    return "\n".join([title, about, *table, f"\n{'; '.join(gaps) or 'Ours is outstanding'}.\n"])
