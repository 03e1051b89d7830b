"""The registry of networks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from rewire.lab.references import file_label
from rewire.lab.registry import Registry

Constructor = TypeVar("Constructor", bound=Callable[..., nn.Module])


@dataclass(frozen=True)
class Network:
    """A network's entry: a function of ``classes``, ``image`` and ``width`` that builds it, and its name in tables.

    ``scales_evenly``: whether the channels of all layers are proportional to the width.
    """

    name: str
    label: str
    function: Callable[..., nn.Module]
    scales_evenly: bool = True

    def __call__(self, **options: Any) -> nn.Module:
        """A new network."""
        return self.function(**options)

    @property
    def about(self) -> str:
        """The first line of the function's docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]


def _entry(name: str, value: Any) -> Network:
    return value if isinstance(value, Network) else Network(name, file_label(name), value)


MODELS: Registry[Network] = Registry("network", folder="rewire.lab.models.networks", group="rewire.models", wrap=_entry)


def register(
    name: str, *, label: str | None = None, scales_evenly: bool = True
) -> Callable[[Constructor], Constructor]:
    """A decorator that adds a network, and returns the function as it is."""

    def add(function: Constructor) -> Constructor:
        MODELS.add(name, Network(name, label or name, function, scales_evenly))
        return function

    return add
