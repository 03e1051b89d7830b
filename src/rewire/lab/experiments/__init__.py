"""One file per table or figure of the paper: functions that return the runs it is made of, at three scales.

``demo``: minutes on two cores, scikit-learn's digits. ``laptop``: hours on two cores, a part of the real CIFAR-100 at
reduced width and epochs. ``paper``: as published, for GPUs.
"""

from importlib import import_module
from typing import Literal

from rewire._lookup import choose
from rewire.lab.run import Run

Scale = Literal["demo", "laptop", "paper"]
SCALES = ("demo", "laptop", "paper")
EXPERIMENTS = {
    "demo": "GGR, SET, RigL, DSR and dense at 97 and 99 %: what `make demo` runs",
    "table1": "networks x methods x sparsities x starts (also the averages of table 2)",
    "table3": "the ablation: SET, RigL, both, and GGR with each growth",
    "table4": "empty neurons and inputs at 97 %",
    "drop": "weights removed per layer against network-wide",
    "stores": "the masked store against the packed one: the same accuracy within the spread over seeds",
}


def runs_of(experiment: str, scale: str) -> list[Run]:
    """The runs of an experiment, in the order in which they are carried out."""
    choose("experiment", experiment, EXPERIMENTS)
    choose("scale", scale, dict.fromkeys(SCALES))
    made: list[Run] = import_module(f"rewire.lab.experiments.{experiment}").runs(scale)
    return list(dict.fromkeys(made))
