"""Sections of the results page on cost: sparse networks beside dense ones, and what every training took."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from rewire.lab.report.findings import Study, accuracy, seconds_on
from rewire.lab.report.looks import label_of, method_look, method_position, network_label, start_position
from rewire.lab.report.results_format import OUTSTANDING, columns_of, markdown
from rewire.lab.report.statistics import mean_interval
from rewire.lab.results import Record
from rewire.lab.run import Run
from rewire.parts.start import start_label

GGR = ("ggr", "erk", Run.growth, Run.scope)  # as it is by default


def dense_section(study: Study) -> str:
    """GGR from ERK, its default start, beside the dense network, for every network that was trained both ways."""
    title, groups = "## Sparse beside dense\n", study.main_configurations()
    dense = {(run.model, run.width): group for run, group in groups.items() if run.is_dense}
    rows = [
        _beside_dense(run, *pairs, study.cpus())
        for run, group in sorted(groups.items(), key=lambda item: _cost_order(item[0]))
        if _chosen(run) == GGR and (pairs := _pairs(group, dense.get((run.model, run.width), ())))[0]
    ]
    if not rows:
        return f"{title}\n{OUTSTANDING}"
    about = (
        "GGR from ERK, its default start, minus the same network dense, over the seeds that both have. Multiply-adds "
        "and seconds of a whole training, as parts of the dense one's; seconds are of runs on the same processor, with "
        "packed weights.\n"
    )
    heads = ["network", "sparsity", "accuracy of these seeds [%]", "minus dense", "95 % interval", "seeds"]
    return "\n".join([title, about, *markdown([*heads, "multiply-adds", "seconds"], rows, 2)]) + "\n"


def _pairs(ours: Iterable[Record], theirs: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """The runs whose seeds are in both groups, in the same order."""
    first, second = ({record.run.seed: record for record in group} for group in (ours, theirs))
    seeds = sorted(set(first) & set(second))
    return [first[seed] for seed in seeds], [second[seed] for seed in seeds]


def _chosen(run: Run) -> tuple[str, ...]:
    """The method and what it is given, as in ``GGR``."""
    return run.method, run.start, run.growth, run.scope


def _beside_dense(run: Run, ours: Sequence[Record], dense: Sequence[Record], cpus: Iterable[str]) -> list[str]:
    gaps = [accuracy(sparse) - accuracy(other) for sparse, other in zip(ours, dense, strict=True)]
    ratio = fmean(record.result["flops"]["training_ratio"] for record in ours if record.result)
    return [
        network_label(run.model, run.width),
        f"{100 * run.sparsity:g} %",
        f"{fmean(map(accuracy, ours)):.2f}",
        *columns_of(mean_interval(gaps)),
        f"{ratio:.2f}",
        _share_of_seconds(ours, dense, cpus),
    ]


def _share_of_seconds(group: Iterable[Record], dense: Iterable[Record], cpus: Iterable[str]) -> str:
    """Seconds as a part of the dense network's, on the first processor that has timed both."""
    for cpu in cpus:
        ours, theirs = seconds_on(cpu, group), seconds_on(cpu, dense)
        if sum(ours) and sum(theirs):
            return f"{fmean(ours) / fmean(theirs):.1f}"
    return "·"


def costs_section(study: Study) -> str:
    """Accuracy, multiply-adds and seconds of one core, for every configuration with the study's main recipe."""
    groups = study.main_configurations()
    title = "## Cost of each training\n"
    if not groups:
        return f"{title}\n{OUTSTANDING}"
    cpus = study.cpus()
    about = (
        "Training multiply-adds as RigL's paper counts them, and seconds of one core, evaluation included. Compare "
        "seconds of one processor only.\n"
    )
    heads = ["network", "method", "sparsity", "start", "store", "accuracy [%]", "seeds", "10¹² multiply-adds"]
    rows = [_cost(run, groups[run], cpus) for run in sorted(groups, key=_cost_order)]
    seconds = [f"seconds, {cpu}" for cpu in cpus]
    return "\n".join([title, about, *markdown([*heads, "of dense", *seconds], rows, 5)]) + "\n"


def _cost_order(run: Run) -> tuple[object, ...]:
    method = method_position(method_look(run).label)
    return (
        label_of("model", run.model),
        run.width,
        method,
        run.sparsity,
        start_position(run.start),
        run.scope,
        run.store,
    )


def _cost(run: Run, group: Sequence[Record], cpus: Iterable[str]) -> list[str]:
    flops = [record.result["flops"] for record in group if record.result]
    method = method_look(run).label + (", global drop" if run.scope != Run.scope else "")
    where = ["·"] * 3 if run.is_dense else [f"{100 * run.sparsity:g} %", start_label(run.start), run.store]
    return [
        network_label(run.model, run.width),
        method,
        *where,
        f"{fmean(map(accuracy, group)):.2f}",
        str(len(group)),
        f"{fmean(flop['training'] * run.batch_size for flop in flops) / 1e12:.1f}",
        f"{fmean(flop['training_ratio'] for flop in flops):.3f}",
        *(f"{fmean(seconds):.0f}" if (seconds := seconds_on(cpu, group)) else "·" for cpu in cpus),
    ]
