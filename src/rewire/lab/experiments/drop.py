"""Local against global removal: the paper reports a minor advantage of the local one from early experiments."""

from rewire.lab.experiments.grid import NETWORKS, SEEDS, sparse
from rewire.lab.run import Run


def runs(scale: str) -> list[Run]:
    """GGR with both scopes."""
    variants = [{"method": "ggr", "scope": scope} for scope in ("layer", "network")]
    return sparse(NETWORKS[scale], variants, SEEDS[scale])
