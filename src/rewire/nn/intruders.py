"""What torch may put on the weight of a layer after sparsify, and how errors name it."""

PRUNE = "torch.nn.utils.prune (or spectral_norm)"
PARAMETRIZATION = "a parametrization (weight_norm, spectral_norm, ...)"


def put_on_after_sparsify(intruder: str, name: str, layer: str) -> str:
    """The beginning of the error."""
    return f"{intruder} was put on the {name} of {layer} after sparsify"
