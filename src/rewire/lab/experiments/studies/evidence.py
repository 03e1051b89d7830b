"""All runs behind the results page, in the order of their importance: an interrupted sweep has the first answers."""

from rewire.lab.experiments.grid import NETWORKS, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.experiments.studies import connected, equal_weights, transformers
from rewire.lab.experiments.studies.better import better
from rewire.lab.experiments.studies.drop import drop
from rewire.lab.experiments.studies.recovery import recovery
from rewire.lab.experiments.studies.table1 import first_cells, other_networks, prefer_random, table1
from rewire.lab.experiments.studies.table3 import GLOBAL, IN_PLACE, table3
from rewire.lab.run import Run


@register("evidence", tables="table1")
def evidence(scale: str) -> list[Run]:
    """Every study of the results page: tables 1, 3 and 4, and what the paper leaves open."""
    if scale != "workstation":
        studies = (table1, table3, drop, connected.connected, recovery, equal_weights.equal_weights)
        return [run for study in studies for run in study(scale)]
    gpt, vit = (transformers.one_network(network, scale) for network in transformers.NETWORKS[scale])
    return (
        better(scale)
        + recovery("demo", seeds=range(20))
        + first_cells()
        + table3(scale)
        + drop(scale)
        + sparse(NETWORKS["demo"], IN_PLACE + GLOBAL, range(5))  # the ablation over twelve settings of the digits
        + equal_weights.equal_weights(scale)
        + recovery(scale)
        + connected.connected(scale)[:12]
        + other_networks()
        + gpt
        + connected.mobilenet()
        + vit
        + prefer_random()
        + connected.last()
    )
