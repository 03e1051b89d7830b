"""Has a model been trained? Nothing says so for certain, but the scales of its norms are a good sign."""

from torch import Tensor, nn

from rewire._torch import local_shard, parameters_of


def looks_trained(model: nn.Module) -> bool:
    """Whether a norm has scales that differ: every initialisation sets them to one number, and training moves them.

    >>> model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    >>> looks_trained(model)
    False
    >>> _ = nn.init.uniform_(model[1].weight)
    >>> looks_trained(model)
    True
    """
    return any(_differ(scales) for scales in map(_scales, model.modules()) if scales is not None)


def _scales(module: nn.Module) -> Tensor | None:
    """The scales of a batch norm, layer norm, RMS norm ..., of any library: known by the name of its class."""
    if "norm" not in type(module).__name__.lower():
        return None
    return parameters_of(module).get("weight")


def _differ(scales: Tensor) -> bool:
    mine = local_shard(scales.detach())
    return mine.dim() == 1 and len(mine) > 1 and not mine.is_meta and bool((mine != mine[0]).any())
