"""Experiments: functions that return the runs of a table or a figure.

Those of the package come at four scales. ``demo``: minutes on two cores, scikit-learn's digits. ``laptop``: hours on
two cores, a part of the real CIFAR-100 at reduced width and epochs. ``workstation``: about a day of one core, all of
CIFAR-100 at quarter width, with the cells that answer the paper's claims. ``paper``: as published, for GPUs.
"""

from rewire.lab.experiments.grid import grid as grid
from rewire.lab.experiments.registry import EXPERIMENTS as EXPERIMENTS
from rewire.lab.experiments.registry import SCALES as SCALES
from rewire.lab.experiments.registry import register as register
from rewire.lab.experiments.registry import runs_of as runs_of
