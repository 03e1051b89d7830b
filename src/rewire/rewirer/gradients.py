"""What a rewirer asks of the gradients before it uses them: whether they are finite and whether any arrived."""

import warnings
from collections.abc import Sequence

from rewire.core.ranks import Ranks, total
from rewire.model.reachability import REMEDY
from rewire.stores.protocol import StoredLayer, no_gradient_arrived


def not_finite(layers: Sequence[StoredLayer], ranks: Ranks) -> list[str]:
    """The names of the layers whose gradient is not finite on some rank."""
    counts = total(ranks, (int(not layer.is_finite()) for layer in layers))
    return [layer.name for layer, count in zip(layers, counts, strict=True) if count]


def warn_if_silent(layers: Sequence[StoredLayer], ranks: Ranks) -> None:
    """Warn if every gradient is zero: for the first step of a model whose connectivity could not be traced."""
    if no_gradient_arrived(layers, ranks):
        warnings.warn(
            "the gradient of every sparse weight is exactly zero at the first step: no signal passes through this "
            f"start, and only random growth could repair it, by chance. {REMEDY}",
            stacklevel=3,
        )
