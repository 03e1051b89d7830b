"""How runs decide the paper's claims: a rule for each, named by its letter. The page lists what was amended when."""

import math
from collections.abc import Callable, Sequence

from rewire.lab.experiments.variants import STARVED_METHODS, starved_layer
from rewire.lab.report.cells import failure_line
from rewire.lab.report.findings import (
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
)
from rewire.lab.report.looks import setting
from rewire.lab.report.questions import Layout
from rewire.lab.report.shortfalls import Shortfalls
from rewire.lab.report.statistics import ENOUGH_SEEDS, in_percent, mean_interval, share_interval
from rewire.lab.report.tables.table4 import EMPTINESS
from rewire.lab.results import Record

RIVALS = {"dsr": "DSR", "rigl": "RigL", "set": "SET"}
FAILING, FITTING = {"rigl": "RigL", "dsr": "DSR"}, {"ggr": "GGR"}  # those that claim i is about
SAME = 0.5  # points up to which a difference counts as none
CLOSED = 0.5  # the share of a starved layer's gap that has to close


def method(cell: Cell, name: str, **more: object) -> Cell:
    """The cell of one method, with its own growth and weights dropped by layer unless said otherwise."""
    return {**cell, "method": name, "growth": "mix", "scope": "layer", **more}


def lead_of_ggr(study: Study, cells: Sequence[Cell]) -> Answer:
    """GGR minus each rival, averaged over cells; each of several cells is a detail."""

    def lead(cell: Cell, rival: str) -> BySeed:
        return difference(study.values(method(cell, "ggr")), study.values(method(cell, rival)))

    leads = {name: [lead(cell, name) for cell in cells] for name in RIVALS}
    effects = [
        effect(f"GGR minus {RIVALS[name]}{where_if_single(cells)}", mean_of(gaps), note=count_of_leads(gaps))
        for name, gaps in leads.items()
    ]
    details = [
        effect(f"GGR minus {RIVALS[name]}, {described(cell)}", gaps[place])
        for place, cell in enumerate(cells)
        for name, gaps in leads.items()
    ]
    used = [method(cell, name) for cell in cells for name in ("ggr", *RIVALS)]
    return answer(study, used, effects, details if len(cells) > 1 else ())


def count_of_leads(gaps: Sequence[BySeed]) -> str:
    """In how many of several cells the interval is above or below zero: one wide interval hides the others' mean."""
    intervals = [mean_interval(list(gap.values())) for gap in gaps if len(gap) >= ENOUGH_SEEDS]
    if len(intervals) < 2:
        return ""
    above = sum(interval.low > 0 for interval in intervals)
    below = sum(interval.high < 0 for interval in intervals)
    return f"interval above zero in {above} and below in {below} of {len(intervals)} cells"


def where_if_single(cells: Sequence[Cell]) -> str:
    """The one cell behind an effect, to be added to its name; several cells are listed as details."""
    return f", {described(cells[0])}" if len(cells) == 1 else ""


def described(cell: Cell) -> str:
    """A cell in words.

    >>> described({"model": "vgg16", "width": 0.25, "sparsity": 0.96, "start": "connected-erk"})
    'VGG16 x0.25, 96 %, connected ERK start'
    """
    return setting(cell["model"], cell.get("width", 1.0), cell["sparsity"], cell.get("start", ""))


def a(study: Study, layout: Layout) -> Answer:
    """Uniform starts."""
    return lead_of_ggr(study, layout.uniform)


def b(study: Study, layout: Layout) -> Answer:
    """What each method loses between ERK and uniform."""

    def loss(name: str, cell: Cell) -> BySeed:
        erk, uniform = (study.values(method(cell, name, start=start)) for start in ("erk", "uniform"))
        return difference(erk, uniform)

    losses = {name: [loss(name, cell) for cell in layout.both] for name in ("ggr", *RIVALS)}
    effects = [
        effect(f"loss of {label} minus loss of GGR", difference(mean_of(losses[name]), mean_of(losses["ggr"])))
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
    return lead_of_ggr(study, [layout.extreme])


GROWTHS: dict[str, Cell] = {
    name: {"method": "ggr", "growth": growth, "scope": "layer"}
    for name, growth in {"mix": "mix", "random": "random", "gradient": "gradient"}.items()
}
IN_PLACE: dict[str, Cell] = {
    name: {"method": own} for name, own in {"mix": "set_rigl", "random": "set", "gradient": "rigl"}.items()
}


def d(study: Study, layout: Layout) -> Answer:
    """The worst shortfall of either part against that of the mix, with GGR's allocation."""
    names = {"mix": "the mix", "random": "random growth", "gradient": "gradient growth"}
    shortfalls = Shortfalls(study, layout.ablation, GROWTHS, names)
    pairs = [("random", "mix"), ("gradient", "mix")]
    return shortfalls.answer([shortfalls.gap(*pair) for pair in pairs], pairs)


def e(study: Study, layout: Layout) -> Answer:
    """The same in place: what mixing gains over RigL, the best of the three in the paper, and that it is little."""
    shortfalls = Shortfalls(study, layout.ablation, IN_PLACE, {"mix": "SET+RigL", "random": "SET", "gradient": "RigL"})
    pairs = [("mix", "gradient"), ("random", "mix")]
    return shortfalls.answer([shortfalls.gap(*pairs[0], above=-SAME)], pairs, [shortfalls.gap(*pairs[1])])


def f(study: Study, layout: Layout) -> Answer:
    """Empty neurons, and the dense parameters that remain without them."""

    def empty(record: Record) -> float:
        return float(EMPTINESS["Empty neurons [%]"][1](record.result or {}) or 0)

    def log_size(record: Record) -> float:
        return math.log(float(EMPTINESS["Params* [M]"][1](record.result or {}) or 1e-6))

    def gap(cells: Sequence[Cell], measure: Measure) -> BySeed:
        """The methods that move weights between layers minus the others."""
        moving, in_place = (
            mean_of([study.values(method(cell, name), measure) for cell in cells for name in pair])
            for pair in (("dsr", "ggr"), ("set", "rigl"))
        )
        return difference(moving, in_place)

    def effects(cells: Sequence[Cell], where: str = "") -> list[Effect | None]:
        smaller = {seed: 100 * (1 - math.exp(ratio)) for seed, ratio in gap(cells, log_size).items()}
        return [
            effect(f"empty neurons: DSR and GGR minus SET and RigL{where}", gap(cells, empty), "percentage points"),
            effect(f"Params*: how much smaller after DSR and GGR{where}", smaller, "%"),
        ]

    details: list[Effect | None] = []
    for cell in (*layout.emptiness, *layout.emptiness_beside):
        details += effects([cell], f", {described(cell)}")
    cells = [method(cell, name) for cell in layout.emptiness for name in ("ggr", *RIVALS)]
    return answer(study, cells, effects(layout.emptiness), details)


def g(study: Study, layout: Layout) -> Answer:
    """Weights dropped from each layer against network-wide."""
    pairs = [(method(cell, "ggr"), method(cell, "ggr", scope="network")) for cell in layout.drop]
    gaps = [difference(study.values(local), study.values(globally)) for local, globally in pairs]
    details = [
        effect(f"local minus global, {described(cell)}", gap) for cell, gap in zip(layout.drop, gaps, strict=True)
    ]
    return answer(
        study, [cell for pair in pairs for cell in pair], [effect("local minus global", mean_of(gaps))], details
    )


def h(study: Study, layout: Layout) -> Answer:
    """SET against GGR with many weights."""
    pairs = [(method(cell, "set"), method(cell, "ggr")) for cell in layout.low]
    gaps = [difference(study.values(ours), study.values(theirs)) for ours, theirs in pairs]
    return answer(
        study,
        [cell for pair in pairs for cell in pair],
        [effect(f"SET minus GGR{where_if_single(layout.low)}", mean_of(gaps))],
    )


def i(study: Study, layout: Layout) -> Answer:
    """RigL and DSR are below the line at which a training counts as failed, GGR is above it."""

    def failed(record: Record) -> float:
        return float(_above_line(record) < 0)

    def share(cell: Cell, name: str) -> Effect | None:
        values = study.values(method(cell, name), failed)
        if not values:
            return None
        interval = in_percent(share_interval(round(sum(values.values())), len(values)))
        return Effect(f"failed seeds of {labels[name]}, {described(cell)}", interval, "%", signed=False)

    def reached(cell: Cell, name: str) -> Effect | None:
        values = study.values(method(cell, name))
        return effect(f"accuracy of {labels[name]}, {described(cell)}", values, "%", signed=False)

    labels = FAILING | FITTING
    cells = {name: method(layout.failing, name) for name in labels}
    effects = [
        effect(
            f"failure line minus accuracy of {label}", study.values(cells[name], lambda record: -_above_line(record))
        )
        for name, label in FAILING.items()
    ]
    effects += [
        effect(f"accuracy of {label} minus failure line", study.values(cells[name], _above_line))
        for name, label in FITTING.items()
    ]
    shown = (layout.failing, *layout.failing_beside)
    details = [measure(cell, name) for cell in shown for measure in (share, reached) for name in labels]
    return answer(study, list(cells.values()), effects, details)


def _above_line(record: Record) -> float:
    """How many points the accuracy is above the line at which a training counts as failed."""
    assert record.result is not None
    return 100 * float(record.result["accuracy"] - failure_line(record.result["classes"]))


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
        unstarved = method(cell, "ggr", start="uniform")
        control = study.values(unstarved, count("nnz"))
        cells.append(unstarved)
        for reference, name in STARVED_METHODS.items():
            starved, label = {**cell, "method": reference}, {"ggr": "GGR", **RIVALS}[name]
            begin, end = (study.values(starved, count(key)) for key in ("initial_nnz", "nnz"))
            gaps = {seed: control[seed] - begin[seed] for seed in end if control.get(seed, 0) > begin[seed]}
            share = {seed: (end[seed] - begin[seed]) / gap for seed, gap in gaps.items()}
            recovery = effect(f"share of the gap closed by {label}, {described(cell)}", share, "", CLOSED, signed=False)
            (details if name in RIVALS else effects).append(recovery)
            if name not in RIVALS:
                worth = difference(study.values(starved), study.values(unstarved))
                details.append(effect(f"accuracy of {label}, starved minus uniform start, {described(cell)}", worth))
            cells.append(starved)
    return answer(study, cells, effects, details)


def k(study: Study, layout: Layout) -> Answer:
    """Sparse and wide against dense and narrow."""

    def weights(record: Record) -> float:
        assert record.result is not None
        return float(record.result["nnz"])

    effects, details = [], []
    for wide, narrow in layout.narrow:
        pair = f"GGR minus dense x{narrow['width']:.3g}, {described(wide)}"
        effects.append(effect(pair, difference(study.values(wide), study.values(narrow))))
        ours, theirs = study.values(wide, weights), study.values(narrow, weights)
        more = {seed: 100 * (ours[seed] / theirs[seed] - 1) for seed in ours if seed in theirs}
        details.append(effect(f"weights: {pair}", more, "%"))
    return answer(study, [cell for pair in layout.narrow for cell in pair], effects, details)


def survives(study: Study, layout: Layout) -> Answer:
    """GGR minus its rivals when all get a connected start."""
    return lead_of_ggr(study, layout.connected)
