"""Table 3 of the paper: the ablation."""

from collections.abc import Iterable

from rewire.lab.report.ablation import BLOCKS, ONLY_ABLATION
from rewire.lab.report.cells import Table
from rewire.lab.report.layout import averages, compared
from rewire.lab.report.registry import register_table
from rewire.lab.results import Record


@register_table("table3", order=3)
def table3(records: Iterable[Record]) -> list[Table]:
    """The ablation: growth at random, by gradients and by both, in place and with GGR's distribution."""
    used = [entry for entry in compared(records) if entry.method in BLOCKS]
    networks = {(entry.data, entry.network) for entry in used if entry.method in ONLY_ABLATION}
    shown = [entry for entry in used if (entry.data, entry.network) in networks]
    return averages("table3", "Table 3: ablation, average accuracy", ("Distribution", "Method"), shown, BLOCKS)
