"""Methods under their names: the function that builds each one, and how tables and figures show it."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from rewire.core.method import Method

Build = TypeVar("Build", bound=Callable[..., Method])

# What can be asked of any method before it is used: enough to see which parts it is made of.
_EXAMPLE: Mapping[str, Any] = {"density": 0.1, "every": 10, "until": 100}


@dataclass(frozen=True)
class Look:
    """How a method appears: its label, its colour on a light and on a dark page, and matplotlib's marker."""

    label: str
    light: str = "#4b5563"
    dark: str = "#b6bdc9"
    marker: str = "*"


@dataclass(frozen=True)
class NamedMethod:
    """A method's entry in ``METHODS``. Calling it builds the method.

    ``variants``: looks of its own for some values of an option, as ``{"growth": {"random": Look("GGR SET")}}``.
    """

    name: str
    function: Callable[..., Method]
    plain_look: Look
    variants: Mapping[str, Mapping[str, Look]] = field(default_factory=dict)

    def __call__(self, **options: Any) -> Method:
        """The method with these options."""
        return self.function(**options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @cached_property
    def options(self) -> dict[str, Any]:
        """The options that the function takes, with their defaults; ``inspect.Parameter.empty`` for a required one."""
        return {name: parameter.default for name, parameter in self.__signature__.parameters.items()}

    def requires(self, option: str) -> bool:
        """Whether an option has no default."""
        return self.options.get(option) is inspect.Parameter.empty

    def ignores(self, option: str, *values: Any) -> bool:
        """Whether an option makes no difference: it is not taken, or all these values give the same method.

        >>> from rewire.methods import METHODS
        >>> METHODS["static"].ignores("fraction", 0.1, 0.2), METHODS["set"].ignores("fraction", 0.1, 0.2)
        (True, False)
        """
        if option not in self.options:
            return True
        first, *others = (self.example(**{option: value}) for value in values)
        return all(other == first for other in others)

    def example(self, **options: Any) -> Method:
        """The method with these options; those that it requires and that are not given get an example value."""
        required = {name: value for name, value in _EXAMPLE.items() if name in self.options}
        return self.function(**required | options)

    @property
    def looks(self) -> list[Look]:
        """Every look that the method has."""
        return [self.plain_look, *(look for by_value in self.variants.values() for look in by_value.values())]

    def look(self, options: Mapping[str, Any]) -> Look:
        """How the method appears when it is built with these options."""
        for option, by_value in self.variants.items():
            if (look := by_value.get(str(options.get(option)))) is not None:
                return look
        return self.plain_look

    @property
    def summary(self) -> str:
        """The first paragraph of the function's docstring."""
        return " ".join(inspect.cleandoc(self.function.__doc__ or "").split("\n\n")[0].split())


class NamedMethods(Mapping[str, NamedMethod]):
    """A mapping from names to methods, in the order in which tables list them. ``register`` adds one."""

    def __init__(self) -> None:
        self._entries: dict[str, NamedMethod] = {}

    def register(
        self,
        name: str,
        *,
        label: str | None = None,
        colours: tuple[str, str] = (Look.light, Look.dark),
        marker: str = Look.marker,
        variants: Mapping[str, Mapping[str, Look]] | None = None,
    ) -> Callable[[Build], Build]:
        """A decorator that adds a function under a name, and returns the function as it is.

        ``colours``: on a light and on a dark page; ``marker``: as matplotlib names it.
        """
        if name in self._entries:
            raise ValueError(f"there is a method {name!r} already: choose another name, or unregister it first")

        def add(build: Build) -> Build:
            look = Look(label or name, *colours, marker)
            self._entries[name] = NamedMethod(name, build, look, variants or {})
            return build

        return add

    def unregister(self, name: str) -> None:
        """Remove a method that was registered."""
        del self._entries[name]

    def __getitem__(self, name: str) -> NamedMethod:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
