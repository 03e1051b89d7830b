"""The methods of the paper's ablation (table 3), and those of them that no other table shows."""

from rewire.lab.experiments.grid import COMPARED
from rewire.lab.experiments.studies import table3
from rewire.lab.report.looks import method_look
from rewire.lab.run import Run


def _labels(variants: list[dict[str, str]]) -> list[str]:
    return [method_look(Run.from_dict(dict(variant))).label for variant in variants]


BLOCKS = dict.fromkeys(_labels(table3.IN_PLACE), "in place") | dict.fromkeys(_labels(table3.GLOBAL), "global")
ONLY_ABLATION = [label for label in BLOCKS if label not in _labels(COMPARED)]
