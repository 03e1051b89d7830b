"""Multiply-accumulates of one forward pass: every active weight times the positions it is applied at."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rewire.select import find_layers, unwrap


def positions(model: nn.Module, example: Tensor) -> dict[str, int]:
    """For each Conv and Linear layer, how often one of its weights is used for one input of the network.

    >>> positions(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU()), torch.zeros(1, 1, 8, 8))
    {'0': 64}
    """
    model = unwrap(model)
    seen: dict[str, int] = {}
    names = {one.module: one.spec.name for one in find_layers(model)[0]}

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        transposed = bool(getattr(module, "transposed", False))
        applied = inputs[0] if transposed else output  # a transposed convolution walks over its input
        weights_see = applied.shape[2:] if isinstance(module, nn.modules.conv._ConvNd) else applied.shape[1:-1]
        seen[names[module]] = seen.get(names[module], 0) + weights_see.numel()

    training = model.training
    hooks = [module.register_forward_hook(note) for module in names]
    try:
        model.eval()
        with torch.no_grad():
            model(example)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return seen


def macs(counts: Mapping[str, int], applied: Mapping[str, int]) -> int:
    """Multiply-accumulates of a network with these many weights per layer.

    >>> macs({"conv": 9, "head": 20}, {"conv": 64, "head": 1})
    596
    """
    return sum(count * applied.get(name, 0) for name, count in counts.items())
