"""Differences between methods, seed by seed, with intervals."""

from collections.abc import Iterable

from rewire.lab.report.cells import Table
from rewire.lab.report.comparison import differences
from rewire.lab.report.registry import register_table
from rewire.lab.results import Record


@register_table("differences", order=7)
def table_differences(records: Iterable[Record]) -> list[Table]:
    """Each method less the first one; for each network."""
    return differences(list(records))
