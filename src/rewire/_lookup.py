"""Names that people type: look one up, or say what was given, what is nearest and what there is."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint such as ``" Did you mean 'ggr'?"``, or nothing when no known name is close.

    >>> nearest("grg", ["ggr", "set"])
    " Did you mean 'ggr'?"
    >>> nearest("adam", ["ggr", "set"])
    ''
    """
    typed, names = str(name).lower(), list(known)
    close = difflib.get_close_matches(typed, names, n=1) or [
        candidate for candidate in names if len(typed) > 2 and typed in candidate
    ]
    return f" Did you mean {close[0]!r}?" if close else ""


def choose(what: str, name: object, table: Mapping[str, T]) -> T:
    """The entry of ``table`` called ``name``; a ``ValueError`` with the nearest and all known names otherwise.

    >>> choose("store", "masked", {"masked": 1})
    1
    >>> choose("store", "maskd", {"masked": 1})
    Traceback (most recent call last):
    ValueError: unknown store 'maskd'. Did you mean 'masked'? Known: masked
    """
    if isinstance(name, str) and name in table:
        return table[name]
    raise ValueError(f"unknown {what} {name!r}.{nearest(name, table)} Known: {', '.join(table)}")
