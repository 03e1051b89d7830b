"""The registry of experiments, and the runs of one of them."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rewire._lookup import choose
from rewire.lab.registry import Registry
from rewire.lab.run import Run

SCALES = ("demo", "laptop", "workstation", "paper")
Function = TypeVar("Function", bound=Callable[..., Sequence[Run]])


@dataclass(frozen=True)
class Experiment:
    """A function that returns runs; one of several scales takes ``scale``."""

    name: str
    function: Callable[..., Sequence[Run]]
    tables: str = ""  # a sweep prints the tables whose names begin with this

    @property
    def about(self) -> str:
        """The first line of the function's docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]

    @property
    def has_scales(self) -> bool:
        """Whether it comes at several scales."""
        return "scale" in inspect.signature(self.function).parameters


def _entry(name: str, value: Any) -> Experiment:
    return value if isinstance(value, Experiment) else Experiment(name, value)


EXPERIMENTS: Registry[Experiment] = Registry(
    "experiment", folder="rewire.lab.experiments.studies", group="rewire.experiments", wrap=_entry
)


def register(name: str, *, tables: str = "") -> Callable[[Function], Function]:
    """A decorator that adds an experiment, and returns the function as it is."""

    def add(function: Function) -> Function:
        EXPERIMENTS.add(name, Experiment(name, function, tables))
        return function

    return add


def runs_of(name: str, scale: str | None = None) -> list[Run]:
    """The runs of an experiment, each once, in the order in which they are carried out."""
    experiment = EXPERIMENTS.find(name)
    if scale is not None:
        choose("scale", scale, dict.fromkeys(SCALES))
        if not experiment.has_scales:
            raise ValueError(f"{name} has no argument scale, so --scale {scale} would have no effect: leave it out")
    runs = experiment.function(scale=scale or SCALES[0]) if experiment.has_scales else experiment.function()
    if not all(isinstance(run, Run) for run in runs):
        raise ValueError(f"{name} must return a list of rewire.lab.Run, not {type(runs).__name__} of other things")
    if not runs:
        raise ValueError(f"{name} returned no runs")
    return list(dict.fromkeys(runs))
