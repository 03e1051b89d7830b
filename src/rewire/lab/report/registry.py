"""The registries of tables and figures. One is a function from records to a list, empty if it has nothing to show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rewire.lab.registry import Registry
from rewire.lab.report.cells import EMPTY, Table
from rewire.lab.results import Record

Shown = TypeVar("Shown")
Function = TypeVar("Function", bound=Callable[..., Any])
LAST = 100  # the place of a table or figure that names none


@dataclass(frozen=True)
class Maker(Generic[Shown]):
    """A function that makes tables or figures; those with a lower ``order`` come first in a report."""

    name: str
    function: Callable[..., Sequence[Shown]]
    order: int = LAST


TABLES: Registry[Maker[Table]] = Registry("table", folder="rewire.lab.report.tables")


def register_table(name: str, *, order: int = LAST) -> Callable[[Function], Function]:
    """A decorator that adds a table: a function of records that returns a list of ``Table``."""

    def add(function: Function) -> Function:
        TABLES.add(name, Maker(name, function, order))
        return function

    return add


def tables(records: Sequence[Record]) -> list[Table]:
    """Every registered table that these records have something for."""
    makers = sorted(TABLES.values(), key=lambda maker: maker.order)
    produced = [table for maker in makers for table in maker.function(records)]
    return [table for table in produced if any(cell.text != EMPTY for _, cells in table.rows for cell in cells)]
