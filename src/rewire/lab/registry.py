"""Named things of one kind: data sets, networks, methods, experiments, tables, figures.

Those of the package are registered by the files of one folder, so that adding one means adding a file. Other packages
add theirs under an entry point, and code that is in no package is named by a reference (``file.py:function``).
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from rewire._lookup import choose
from rewire.lab import references
from rewire.lab.references import Code, MissingCodeError

T = TypeVar("T")


class Registry(MutableMapping[str, T], Generic[T]):
    """A mapping from names to entries, in the order in which they are listed: those of a folder by name.

    ``folder``: the package whose modules register the built-in entries; it is read when an entry is first asked for.
    ``group``: the entry points under which other packages add theirs. ``wrap``: makes an entry of a name and a function
    that is no entry yet. ``also``: another mapping whose entries count as built in.
    """

    def __init__(
        self,
        kind: str,
        *,
        folder: str = "",
        group: str = "",
        wrap: Callable[[str, Any], T] | None = None,
        also: Mapping[str, T] | None = None,
    ) -> None:
        self.kind, self._folder, self._group, self._wrap = kind, folder, group, wrap
        self._entries: dict[str, T] = {}
        self._also: Mapping[str, T] = also if also is not None else {}
        self._loaded = not folder

    def add(self, name: str, entry: T) -> None:
        """Register an entry under a name that is not taken."""
        if name in self._entries or name in self._also:
            raise ValueError(f"there is a {self.kind} {name!r} already: choose another name, or delete it first")
        self._entries[name] = entry

    def find(self, name: str, code: Code | None = None) -> T:
        """The entry of a name or a reference; ``code`` is the code that a run recorded, which must still be there."""
        if references.is_reference(name) and self._wrap is not None:
            return self._as_entry(references.short_name(name), references.load(name, code))
        if name in self:
            return self[name]
        installed = self._installed()
        if name in installed:
            return self._as_entry(name, installed[name].load())
        if code is not None:
            raise MissingCodeError(f"the {self.kind} {name!r} is not registered here: install or import its package")
        return choose(self.kind, name, {**self, **dict.fromkeys(installed)})  # type: ignore[return-value]

    def names(self) -> list[str]:
        """Every name that can be asked for without a reference."""
        return [*self, *self._installed()]

    def _as_entry(self, name: str, value: Any) -> T:
        assert self._wrap is not None
        return self._wrap(name, value)

    def _installed(self) -> dict[str, Any]:
        return {entry_point.name: entry_point for entry_point in entry_points(group=self._group)} if self._group else {}

    def _all(self) -> Mapping[str, T]:
        if not self._loaded:
            self._loaded = True
            package = importlib.import_module(self._folder)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self._folder}.{module.name}")
        own = dict(sorted(self._entries.items())) if self._folder else self._entries
        return {**self._also, **own}

    def __getitem__(self, name: str) -> T:
        return self._all()[name]

    def __setitem__(self, name: str, entry: T) -> None:
        self._all()
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        self._all()
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
