"""Weights dropped layer by layer against network-wide."""

from collections.abc import Iterable

from rewire.lab.report.cells import Table
from rewire.lab.report.groups import entries
from rewire.lab.report.layout import accuracy_grids
from rewire.lab.report.registry import register_table
from rewire.lab.results import Record


@register_table("drop", order=5)
def table_drop(records: Iterable[Record]) -> list[Table]:
    """The lowest weights dropped from each layer against network-wide; one table per data set."""
    all_entries = entries(records)
    both = {(e.data, e.network, e.method, e.column) for e in all_entries if e.scope == "network"}
    used = [e for e in all_entries if (e.data, e.network, e.method, e.column) in both]
    about = "Top-1 accuracy in percent on the test set of {}: lowest weights dropped from each layer or network-wide."
    title = "Local against global removal on {}"
    return accuracy_grids("drop", title, about, used, lambda entry: f"{entry.method}, by {entry.scope}")
