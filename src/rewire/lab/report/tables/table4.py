"""Table 4 of the paper: neurons and inputs that have lost every weight."""

from collections.abc import Iterable
from typing import Any

from rewire.lab.report.ablation import ONLY_ABLATION
from rewire.lab.report.cells import Table
from rewire.lab.report.layout import Measures, compared, measures_by_start
from rewire.lab.report.registry import register_table
from rewire.lab.results import Record


def _sum(result: dict[str, Any], name: str) -> int:
    return sum(int(layer[name]) for layer in result["layers"])


EMPTINESS: Measures = {
    "Empty neurons [%]": (".1f", lambda result: 100 * _sum(result, "empty_neurons") / _sum(result, "neurons")),
    "Empty inputs [%]": (".1f", lambda result: 100 * _sum(result, "empty_inputs") / _sum(result, "inputs")),
    "Params* [M]": (".3f", lambda result: _sum(result, "remaining") / 1e6),
}


@register_table("table4", order=4)
def table4(records: Iterable[Record]) -> list[Table]:
    """Accuracy, empty neurons and inputs, and parameters left without them; one table per data set and sparsity."""
    about = (
        "Empty neurons and inputs (channels of convolutions) after training on {} at s={:g}, those of failed runs "
        "included. *Dense parameters that remain when both are removed."
    )
    title = "Table 4: empty neurons and inputs on {}, s={:g}"
    return measures_by_start("table4", title, about, EMPTINESS, compared(records, without=ONLY_ABLATION))
