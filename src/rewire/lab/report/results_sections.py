"""Sections of the results page beyond the paper: what would make GGR better, transformers, and a peer's code."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rewire.lab.experiments.studies import better
from rewire.lab.experiments.studies.connected import START
from rewire.lab.experiments.studies.transformers import NETWORKS as TRANSFORMERS
from rewire.lab.report.findings import BySeed, Measure, Study, accuracy, difference
from rewire.lab.report.groups import without_unused
from rewire.lab.report.looks import label_of, method_look, setting
from rewire.lab.report.results_format import OUTSTANDING, columns_of, markdown, number, range_and_seeds
from rewire.lab.report.statistics import Interval, mean_interval, paired_difference
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
    rows: list[list[str]] = []
    clearly_better: dict[str, Interval | None] = {}  # on the digits: what became of it on CIFAR-100
    for name, change in better.CHANGES.items():
        if gaps := _gaps(study, replace(better.BASE, **change), base):
            on_large = _gaps_on_large(study, name, large_base)
            corrected = mean_interval(gaps, 1 - 0.05 / count)
            mark = "\\*" if corrected.excludes_zero else ""
            rows.append([name, *columns_of(mean_interval(gaps), mark), *(columns_of(on_large) if on_large else "···")])
            if corrected.low > 0:
                clearly_better[name] = on_large
    heads = ["change", "on digits", "95 % interval", "seeds", "on CIFAR-100", "95 % interval", "seeds"]
    lines = [title, about, *markdown(heads, rows, 1), f"\n{recommendation(clearly_better)}"]
    lines += ["\nIts rivals on the digits, minus GGR with the same start:\n", *_rivals(study)]
    if rows := _schedules(study):
        heads = ["method", "rewired", "accuracy [%]", "multiply-adds of dense", "minus GGR", "95 % interval", "seeds"]
        lines += ["\nGGR and its rivals on CIFAR-100, with two schedules:\n", *markdown(heads, rows, 2)]
    return "\n".join(lines) + "\n"


def recommendation(clearly_better: Mapping[str, Interval | None]) -> str:
    """What to change of GGR: what is clearly better on the digits, and better on CIFAR-100 as well."""
    if not clearly_better:
        return "No change is clearly better on the digits, so none is recommended."
    outcomes = [f"{name} ({_outcome(on_large)})" for name, on_large in clearly_better.items()]
    both = [name for name, on_large in clearly_better.items() if on_large is not None and on_large.low > 0]
    return (
        f"Clearly better on the digits: {'; '.join(outcomes)}. Recommended is what is better on both: "
        f"**{', '.join(both) or 'nothing'}**."
    )


def _outcome(on_large: Interval | None) -> str:
    if on_large is None:
        return "not tried on CIFAR-100"
    if on_large.excludes_zero:
        return "better on CIFAR-100 too" if on_large.low > 0 else "worse on CIFAR-100"
    return "no clear difference on CIFAR-100"


def _of(run: Run) -> str:
    return setting(run.model, run.width, run.sparsity, run.start)


def _gaps(study: Study, run: Run, base: BySeed) -> list[float]:
    """What exactly these settings gain over others, seed by seed."""
    return list(difference(_values(study, run), base).values())


def _gaps_on_large(study: Study, change: str, base: BySeed) -> Interval | None:
    """What a change gains on CIFAR-100; nothing where it was not tried."""
    if change not in better.ON_LARGE:
        return None
    gaps = _gaps(study, replace(better.LARGE, **better.ON_LARGE[change]), base)
    return mean_interval(gaps) if gaps else None


def _rivals(study: Study) -> list[str]:
    rows = []
    for start in (better.BASE.start, START):
        own = _values(study, replace(better.BASE, start=start))
        for name in better.RIVALS:
            run = replace(better.BASE, method=name, start=start)
            if gaps := _gaps(study, run, own):
                rows.append([method_look(run).label, start_label(start), *columns_of(mean_interval(gaps))])
    return markdown(["rival", "start", "difference", "95 % interval", "seeds"], rows, 2)


def _schedules(study: Study) -> list[list[str]]:
    """GGR and its rivals on CIFAR-100, rewired as often as in the study and as in the paper."""
    rows = []
    for schedule, every in better.SCHEDULES.items():
        base = replace(better.LARGE, every=every)
        own = _values(study, base)
        for run in (base, *(replace(base, method=name) for name in better.RIVALS_ON_LARGE)):
            if reached := _values(study, run):
                ratio = fmean(_values(study, run, _training_ratio).values())
                gaps = [] if run == base else _gaps(study, run, own)
                beside = columns_of(mean_interval(gaps)) if gaps else ["·", "·", str(len(reached))]
                rows.append(
                    [method_look(run).label, schedule, f"{fmean(reached.values()):.2f}", f"{ratio:.3f}", *beside]
                )
    return rows


def _training_ratio(record: Record) -> float:
    assert record.result is not None
    return float(record.result["flops"]["training_ratio"])


def _values(study: Study, run: Run, measure: Measure = accuracy) -> BySeed:
    """What was measured of exactly these settings, by seed."""
    bare = without_unused(run)
    cell = {field.name: getattr(bare, field.name) for field in fields(Run) if field.name not in ("seed", "code")}
    return study.values(cell, measure)


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
    title = "### A peer's own code"
    if not path.exists() or not (lines := [json.loads(line) for line in path.read_text().splitlines()]):
        return f"{title}\n\n{OUTSTANDING[:-2]} (`python -m benchmarks.peer_rigl`).\n"
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
        weights = f"{fmean(line['nnz'] for line in own.values()):,.0f}"
        rows.append([arm, f"{fmean(values[arm].values()):.2f}", weights, f"{seconds:.1f}", str(len(own))])
    gaps = [
        f"{arm} minus {theirs}: {number(interval.mean)} points ({range_and_seeds(interval)})"
        for arm in ours
        if (interval := paired_difference(values[arm], values[theirs])) is not None
    ]
    table = markdown(["code", "accuracy [%]", "weights", "seconds per epoch", "seeds"], rows, 1)
    return "\n".join([f"{title}: {theirs}\n", about, *table, f"\n{'; '.join(gaps) or 'Ours is outstanding'}.\n"])
