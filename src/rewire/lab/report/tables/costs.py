"""What training and inference cost, in multiply-adds."""

from collections.abc import Iterable

from rewire.lab.report.ablation import ONLY_ABLATION
from rewire.lab.report.cells import Table
from rewire.lab.report.layout import Measures, compared, measures_by_start
from rewire.lab.report.registry import register_table
from rewire.lab.results import Record

COSTS: Measures = {  # results of an earlier version lack some of them
    "Training": (".3f", lambda result: result["flops"].get("training_ratio")),
    "Inference": (".3f", lambda result: result["flops"]["ratio"]),
    "Explored [%]": (".1f", lambda result: 100 * n / result["weights"] if (n := result.get("explored")) else None),
}


@register_table("costs", order=6)
def table_costs(records: Iterable[Record]) -> list[Table]:
    """Accuracy and multiply-adds of training and inference against dense; one table per data set and sparsity."""
    about = (
        "Multiply-adds on {} at s={:g} relative to dense, counted as in RigL's paper with the densities that layers "
        "had during training, failed runs included; and the share of all positions that were ever active."
    )
    used = compared(records, without=ONLY_ABLATION)
    return measures_by_start("costs", "Cost on {}, s={:g}", about, COSTS, used)
