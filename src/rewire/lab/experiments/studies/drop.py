"""Local against global removal: the paper reports a minor advantage of the local one from early experiments."""

from rewire.lab.experiments import workstation as ws
from rewire.lab.experiments.grid import NETWORKS, SEEDS, sparse
from rewire.lab.experiments.registry import register
from rewire.lab.run import Run


@register("drop", tables="drop")
def drop(scale: str) -> list[Run]:
    """GGR with weights dropped from each layer, and from the whole network."""
    variants = [{"method": "ggr", "scope": scope} for scope in ("layer", "network")]
    if scale == "workstation":
        return ws.cells(ws.VGG, ws.HIGH, variants=variants, seeds=ws.CLAIM_SEEDS)
    return sparse(NETWORKS[scale], variants, SEEDS[scale])
