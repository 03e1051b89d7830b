"""Multiply-accumulates: every active weight times the positions it is applied at; of a pass and of a training."""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from rewire.layer import Signal
from rewire.method import Rewiring
from rewire.select import find_layers, unwrap


def positions(model: nn.Module, example: Tensor) -> dict[str, int]:
    """For each Conv and Linear layer, how often one of its weights is used for one input of the network.

    >>> positions(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU()), torch.zeros(1, 1, 8, 8))
    {'0': 64}
    """
    model = unwrap(model)
    seen: dict[str, int] = {}
    names = {one.module: one.spec.name for one in find_layers(model, frozen=True)[0]}

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


def training_macs(
    initial: Mapping[str, int],
    sizes: Mapping[str, int],
    applied: Mapping[str, int],
    history: Sequence[Rewiring],
    steps: int,
    ranks: Collection[Signal] = (),
) -> int:
    """Multiply-accumulates of a training of ``steps`` steps, per example of a batch, along the real densities.

    Counted as in RigL's paper: a step costs the forward pass three times, ``3 f_S`` (forward, gradient of the inputs,
    gradient of the weights). Where a method ranks the gradients of missing weights, the gradient of the weights is
    dense: ``2 f_S + f_D``, at the steps that rewire (RigL, GGR), or at every step where momentum is ranked (SNFS).

    >>> training_macs({"a": 2}, {"a": 10}, {"a": 1}, [Rewiring(4, 0.5, [1], [1], [0])], steps=8, ranks=[Signal.GRAD])
    56
    """
    dense, always = macs(sizes, applied), Signal.MOMENTUM in ranks
    now, total, done = dict(initial), 0, 0
    for one in history:
        sparse = macs(now, applied)
        between = one.step - done - 1
        total += between * _step(sparse, dense, always) + _step(sparse, dense, always or Signal.GRAD in ranks)
        done = one.step
        now = {n: now[n] - d + g for n, d, g in zip(now, one.dropped, one.grown, strict=True)}
    return total + (steps - done) * _step(macs(now, applied), dense, always)


def _step(sparse: int, dense: int, whole_gradient: bool) -> int:
    return 2 * sparse + (dense if whole_gradient else sparse)
