"""Table 2 of the paper: the averages of table 1."""

from collections.abc import Iterable

from rewire.lab.report.ablation import ONLY_ABLATION
from rewire.lab.report.cells import Table
from rewire.lab.report.layout import averages, compared
from rewire.lab.report.registry import register_table
from rewire.lab.results import Record


@register_table("table2", order=2)
def table2(records: Iterable[Record]) -> list[Table]:
    """Accuracy by method, averaged over networks and data sets."""
    return averages("table2", "Table 2: average accuracy", ("Method",), compared(records, without=ONLY_ABLATION), {})
