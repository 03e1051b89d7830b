"""How runs decide the paper's claims: a rule for each, named by its letter, written before the runs were made."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from rewire.lab.experiments.variants import STARVED_METHODS, starved_layer
from rewire.lab.report.cells import failure_line
from rewire.lab.report.findings import (
    CONFIRMED,
    CONTRADICTED,
    NOT_CONFIRMED,
    UNDECIDED,
    Answer,
    BySeed,
    Cell,
    Effect,
    Measure,
    Study,
    answer,
    difference,
    effect,
    mean_of,
    regret,
)
from rewire.lab.report.looks import network_label
from rewire.lab.report.questions import Layout
from rewire.lab.report.statistics import in_percent, share_interval
from rewire.lab.report.tables.table4 import EMPTINESS
from rewire.lab.results import Record

RIVALS = {"dsr": "DSR", "rigl": "RigL", "set": "SET"}
FAILING = {"rigl": "RigL", "dsr": "DSR", "ggr": "GGR"}  # those that claim i is about
SAME = 0.5  # points below which a difference counts as none
CLOSED = 0.5  # the share of a starved layer's gap that has to close


def method(cell: Cell, name: str, **more: object) -> Cell:
    """The cell of one method, with its own growth and weights dropped by layer unless said otherwise."""
    return {**cell, "method": name, "growth": "mix", "scope": "layer", **more}


def ahead(study: Study, cells: Sequence[Cell], beside: Sequence[Cell] = ()) -> Answer:
    """GGR less each rival, averaged over cells; each cell is a detail, and so are those beside them."""

    def lead(cell: Cell, rival: str) -> BySeed:
        return difference(study.values(method(cell, "ggr")), study.values(method(cell, rival)))

    effects, details = [], []
    for name, label in RIVALS.items():
        gaps = [lead(cell, name) for cell in (*cells, *beside)]
        effects.append(effect(f"GGR less {label}", mean_of(gaps[: len(cells)])))
        for cell, gap in zip((*cells, *beside), gaps, strict=True):
            details.append(effect(f"GGR less {label}, {described(cell)}", gap))
    used = [method(cell, name) for cell in cells for name in ("ggr", *RIVALS)]
    return answer(study, used, effects, details if len(details) > len(effects) else ())


def described(cell: Cell) -> str:
    """A cell in words."""
    start = f" {cell['start']}" if "start" in cell else ""
    return f"{network_label(cell['model'], cell.get('width', 1))} {100 * cell['sparsity']:g} %{start}"


def a(study: Study, layout: Layout) -> Answer:
    """Uniform starts."""
    return ahead(study, layout.uniform, layout.fewer_seeds)


def b(study: Study, layout: Layout) -> Answer:
    """What each method loses between ERK and uniform."""

    def loss(name: str, cell: Cell) -> BySeed:
        erk, uniform = (study.values(method(cell, name, start=start)) for start in ("erk", "uniform"))
        return difference(erk, uniform)

    losses = {name: [loss(name, cell) for cell in layout.both] for name in ("ggr", *RIVALS)}
    effects = [
        effect(f"loss of {label} less loss of GGR", difference(mean_of(losses[name]), mean_of(losses["ggr"])))
        for name, label in RIVALS.items()
    ]
    details = [
        effect(f"loss of {RIVALS.get(name, 'GGR')}, {described(cell)}", values)
        for name, by_cell in losses.items()
        for cell, values in zip(layout.both, by_cell, strict=True)
    ]
    cells = [method(cell, n, start=s) for cell in layout.both for n in losses for s in ("erk", "uniform")]
    return answer(study, cells, effects, details)


def c(study: Study, layout: Layout) -> Answer:
    """The sparsest MobileNetV2 from ERK."""
    return ahead(study, [layout.extreme])


def _regrets(study: Study, settings: Sequence[Cell], variants: dict[str, Cell]) -> dict[str, BySeed]:
    values = [{name: study.values({**cell, **own}) for name, own in variants.items()} for cell in settings]
    return {name: regret(values, name) for name in variants}


GROWTHS: dict[str, Cell] = {
    name: {"method": "ggr", "growth": growth, "scope": "layer"}
    for name, growth in {"mix": "mix", "random": "random", "gradient": "gradient"}.items()
}
IN_PLACE: dict[str, Cell] = {
    name: {"method": own} for name, own in {"mix": "set_rigl", "random": "set", "gradient": "rigl"}.items()
}


GROWTH_NAMES = {"mix": "the mix", "random": "random growth", "gradient": "gradient growth"}


def d(study: Study, layout: Layout) -> Answer:
    """The mix's worst shortfall against that of either part, with GGR's allocation."""
    return _steadier(study, layout, GROWTHS)


def _steadier(study: Study, layout: Layout, variants: dict[str, Cell]) -> Answer:
    effects, details, cells = [], [], []
    for where, settings in layout.ablation.items():
        worst = _regrets(study, settings, variants)
        for other in ("random", "gradient"):
            name = f"{where}: worst shortfall of {other} growth less that of the mix"
            effects.append(effect(name, difference(worst[other], worst["mix"])))
        details += [
            effect(f"{where}: worst shortfall of {GROWTH_NAMES[name]}", values) for name, values in worst.items()
        ]
        cells += [{**cell, **own} for cell in settings for own in variants.values()]
    return answer(study, cells, effects, details)


def e(study: Study, layout: Layout) -> Answer:
    """The same in place, where the paper sees no such effect."""
    raw = _steadier(study, layout, IN_PLACE)
    if raw.verdict == UNDECIDED:
        return raw
    best = [one for one in raw.effects if "gradient" in one.name]  # RigL is the better part in the paper
    if all(one.interval.high < SAME for one in best):
        verdict = CONFIRMED
    else:
        verdict = CONTRADICTED if all(one.interval.low > 0 for one in best) else NOT_CONFIRMED
    return replace(raw, verdict=verdict)


def f(study: Study, layout: Layout) -> Answer:
    """Empty neurons, and the dense parameters that remain without them."""

    def empty(record: Record) -> float:
        return float(EMPTINESS["Empty neurons [%]"][1](record.result or {}) or 0)

    def log_size(record: Record) -> float:
        return math.log(float(EMPTINESS["Params* [M]"][1](record.result or {}) or 1e-6))

    def gap(cells: Sequence[Cell], measure: Measure) -> BySeed:
        """The methods that move weights between layers less the others."""
        moving, in_place = (
            mean_of([study.values(method(cell, name), measure) for cell in cells for name in pair])
            for pair in (("dsr", "ggr"), ("set", "rigl"))
        )
        return difference(moving, in_place)

    def effects(cells: Sequence[Cell], where: str = "") -> list[Effect | None]:
        smaller = {seed: 100 * (1 - math.exp(ratio)) for seed, ratio in gap(cells, log_size).items()}
        return [
            effect(f"empty neurons: DSR and GGR less SET and RigL{where}", gap(cells, empty), "% of neurons"),
            effect(f"Params*: DSR and GGR smaller than SET and RigL{where}", smaller, "%"),
        ]

    details: list[Effect | None] = []
    for cell in ({**network, "start": start} for network in layout.both for start in ("erk", "uniform")):
        details += effects([cell], f", {described(cell)}")
    cells = [method(cell, name) for cell in layout.emptiness for name in ("ggr", *RIVALS)]
    return answer(study, cells, effects(layout.emptiness), details)


def g(study: Study, layout: Layout) -> Answer:
    """Weights dropped from each layer against network-wide."""
    pairs = [(method(cell, "ggr"), method(cell, "ggr", scope="network")) for cell in layout.drop]
    gaps = [difference(study.values(local), study.values(globally)) for local, globally in pairs]
    details = [
        effect(f"local less global, {described(cell)}", gap) for cell, gap in zip(layout.drop, gaps, strict=True)
    ]
    return answer(study, [one for pair in pairs for one in pair], [effect("local less global", mean_of(gaps))], details)


def h(study: Study, layout: Layout) -> Answer:
    """SET against GGR with many weights."""
    pairs = [(method(cell, "set"), method(cell, "ggr")) for cell in layout.low]
    gaps = [difference(study.values(ours), study.values(theirs)) for ours, theirs in pairs]
    return answer(study, [one for pair in pairs for one in pair], [effect("SET less GGR", mean_of(gaps))])


def i(study: Study, layout: Layout) -> Answer:
    """Who fails: the share of seeds below the failure line."""
    raw = answer(study, [method(layout.failing, name) for name in FAILING], *_failures(study, layout))
    if raw.verdict == UNDECIDED:
        return raw
    rigl, dsr, ggr = (share.interval.mean for share in raw.effects)  # failed seeds in percent, in the order of FAILING
    if ggr == 0 and rigl == dsr == 100:
        verdict = CONFIRMED
    else:
        verdict = CONTRADICTED if ggr > min(rigl, dsr) or rigl == dsr == 0 else NOT_CONFIRMED
    return replace(raw, verdict=verdict)


def _failures(study: Study, layout: Layout) -> tuple[list[Effect | None], list[Effect | None]]:
    """The shares of failed seeds that decide, and beside them accuracies and other networks."""

    def failed(record: Record) -> float:
        assert record.result is not None
        return float(record.result["accuracy"] < failure_line(record.result["classes"]))

    def share(cell: Cell, name: str) -> Effect | None:
        values = study.values(method(cell, name), failed)
        if not values:
            return None
        interval = in_percent(share_interval(round(sum(values.values())), len(values)))
        return Effect(f"failed seeds of {FAILING[name]}, {described(cell)}", interval, "%")

    def reached(cell: Cell, name: str) -> Effect | None:
        return effect(f"accuracy of {FAILING[name]}, {described(cell)}", study.values(method(cell, name)), "%")

    beside = [measure(cell, name) for cell in layout.failing_beside for measure in (share, reached) for name in FAILING]
    return [share(layout.failing, name) for name in FAILING], [
        reached(layout.failing, name) for name in FAILING
    ] + beside


def j(study: Study, layout: Layout) -> Answer:
    """The share of its gap that a starved layer recovers."""

    def count(name: str) -> Callable[[Record], float]:
        def read(record: Record) -> float:
            assert record.result is not None
            layers = record.result["layers"]
            return float(layers[starved_layer(len(layers))][name])

        return read

    effects: list[Effect | None] = []
    details: list[Effect | None] = []
    cells = []
    for cell in layout.starved:
        control = study.values(method(cell, "ggr", start="uniform"), count("nnz"))
        cells.append(method(cell, "ggr", start="uniform"))
        for reference, name in STARVED_METHODS.items():
            starved, label = {**cell, "method": reference}, {"ggr": "GGR", **RIVALS}[name]
            begin, end = (study.values(starved, count(one)) for one in ("initial_nnz", "nnz"))
            share = {seed: (end[seed] - begin[seed]) / (control[seed] - begin[seed]) for seed in end if seed in control}
            found = effect(f"share of the gap closed by {label}, {described(cell)}", share, "", CLOSED)
            (details if name in RIVALS else effects).append(found)
            cells.append(starved)
    return answer(study, cells, effects, details)


def k(study: Study, layout: Layout) -> Answer:
    """Sparse and wide against dense and narrow."""
    effects = [
        effect(
            f"GGR less dense x{narrow['width']:.3g}, {described(wide)}",
            difference(study.values(wide), study.values(narrow)),
        )
        for wide, narrow in layout.narrow
    ]
    return answer(study, [one for pair in layout.narrow for one in pair], effects)


def survives(study: Study, layout: Layout) -> Answer:
    """GGR less its rivals when all get a connected start."""
    return ahead(study, layout.connected)
