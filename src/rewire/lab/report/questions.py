"""Which cells of a study answer which claim, for the workstation's study and for its reduced version on the digits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from rewire.lab.experiments import workstation as ws
from rewire.lab.experiments.grid import NETWORKS, SPARSITIES, STARTS
from rewire.lab.experiments.studies.connected import START
from rewire.lab.experiments.studies.connected import STARTS as CONNECTED
from rewire.lab.experiments.studies.equal_weights import NARROW
from rewire.lab.experiments.studies.evidence import SMALL_WIDTH
from rewire.lab.report.findings import Cell
from rewire.lab.run import DENSE, Run


@dataclass(frozen=True)
class Layout:
    """The cells of each claim; settings that a claim varies are left open."""

    uniform: Sequence[Cell]  # a: networks and sparsities, from a uniform start
    both: Sequence[Cell]  # b: networks and sparsities that have both starts
    extreme: Cell  # c: the network that is hardest to train, from ERK
    ablation: Mapping[str, Sequence[Cell]]  # d and e: groups of settings
    emptiness: Sequence[Cell]  # f: where some method leaves a hundredth of the neurons empty, or more
    emptiness_beside: Sequence[Cell]  # f: shown beside it, without a part in the verdict
    drop: Sequence[Cell]  # g
    low: Sequence[Cell]  # h: many weights, from ERK
    failing: Cell  # i: few weights, from a uniform start
    failing_beside: Sequence[Cell]  # i: shown beside it, without a part in the verdict
    starved: Sequence[Cell]  # j: networks and sparsities
    narrow: Sequence[tuple[Cell, Cell]]  # k: a sparse network, and a dense one
    connected: Sequence[Cell]  # the open question: cells with connected starts


_SCHEDULE = ("every", "until", "fraction", "init")
_SETTINGS = ("data", "model", "width", "store", *_SCHEDULE)


def network(run: Run, sparsity: float, **more: Any) -> Cell:
    """The cell of a network at a sparsity, by the settings that distinguish networks of a study."""
    own = {name: getattr(run, name) for name in _SETTINGS}
    return {**own, "sparsity": sparsity, **more}


def starts(cell: Cell) -> list[Cell]:
    """A cell with each start of the paper."""
    return [{**cell, "start": start} for start in STARTS]


def _dense(run: Run, width: float) -> Cell:
    without = {name: getattr(Run, name) for name in ("store", *_SCHEDULE)}  # they have no effect on a dense run
    return {**network(run, 0.0), **without, "width": width, "method": DENSE}


def _ggr(run: Run, sparsity: float) -> Cell:
    return network(run, sparsity, start="erk", method="ggr", growth="mix", scope="layer")


_DIGITS = [cell for run, s in product(NETWORKS["demo"], SPARSITIES) for cell in starts(network(run, s))]
_HIGH, _MIDDLE = network(ws.VGG, ws.HIGH), network(ws.VGG, ws.MIDDLE)
_FULL = network(ws.FULL_VGG, 0.99, start="uniform")
_SMALL, _MLP = NETWORKS["demo"]
_ONE = [cell for sparsity in SPARSITIES for cell in starts(network(_MLP, sparsity))]

LAYOUTS = {
    "workstation": Layout(
        uniform=[
            {**_HIGH, "start": "uniform"},
            {**_MIDDLE, "start": "uniform"},
            _FULL,
            network(ws.RESNET, ws.HIGH, start="uniform"),
        ],
        both=[_HIGH, _MIDDLE],
        extreme=network(ws.MOBILENET, ws.HIGH, start="erk"),
        ablation={"VGG16 on CIFAR-100": starts(_HIGH), "digits": _DIGITS},
        emptiness=[
            network(ws.MOBILENET, ws.HIGH, start="erk"),
            network(ws.RESNET, ws.HIGH, start="uniform"),
            {**_HIGH, "start": "uniform"},
            _FULL,
        ],
        emptiness_beside=[{**_HIGH, "start": "erk"}, *starts(_MIDDLE)],
        drop=starts(_HIGH),
        low=[network(ws.RESNET, ws.LOW, start="erk")],
        failing=_FULL,
        failing_beside=[{**_HIGH, "start": "uniform"}],
        starved=[_HIGH, network(_SMALL, 0.97)],
        narrow=[(_ggr(ws.VGG, sparsity), _dense(ws.VGG, width)) for sparsity, width in NARROW.items()],
        connected=[network(run, ws.HIGH, start=start) for run in (ws.VGG, ws.MOBILENET) for start in CONNECTED],
    ),
    "demo": Layout(
        uniform=[network(_MLP, sparsity, start="uniform") for sparsity in (0.97, 0.99)],
        both=[network(_MLP, sparsity) for sparsity in (0.97, 0.99)],
        extreme=network(_MLP, 0.99, start="erk"),
        ablation={"digits": _ONE},
        emptiness=starts(network(_MLP, 0.97)),
        emptiness_beside=[],
        drop=starts(network(_MLP, 0.97)),
        low=[network(_MLP, 0.9, start="erk")],
        failing=network(_MLP, 0.99, start="uniform"),
        failing_beside=[],
        starved=[network(_MLP, 0.97)],
        narrow=[(_ggr(_MLP, 0.9), _dense(_MLP, SMALL_WIDTH))],
        connected=[network(_MLP, 0.99, start=START)],
    ),
}
