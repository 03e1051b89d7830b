"""Table 1 of the paper: accuracy by network and method, sparsity and start."""

from collections.abc import Iterable

from rewire.lab.report.ablation import ONLY_ABLATION
from rewire.lab.report.cells import Table
from rewire.lab.report.layout import accuracy_grids, compared
from rewire.lab.report.registry import register_table
from rewire.lab.results import Record


@register_table("table1", order=1)
def table1(records: Iterable[Record]) -> list[Table]:
    """Accuracy by network and method, sparsity and start; one table per data set."""
    about = "Top-1 accuracy in percent on the test set of {} after the last epoch, by sparsity s and start."
    used = compared(records, without=ONLY_ABLATION)
    return accuracy_grids("table1", "Table 1: accuracy on {}", about, used, lambda entry: entry.method)
