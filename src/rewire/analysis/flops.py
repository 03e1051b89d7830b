"""Multiply-accumulates: every active weight times the positions it is applied at; of a pass and of a training."""

import warnings
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from rewire.core.layer import Signal
from rewire.core.method import Method, Rewiring
from rewire.model.select import Found, find_layers, unwrap


def positions(model: nn.Module, example: Tensor) -> dict[str, int]:
    """For each layer, how often one of its weights is used for one input of the network.

    Counted for modules that compute with one weight. How often the weights of others are used (the projections of
    ``nn.MultiheadAttention``, experts, LSTM) is not known from their input and output: a warning names them.

    >>> positions(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU()), torch.zeros(1, 1, 8, 8))
    {'0': 64}
    """
    model = unwrap(model)
    seen: dict[str, int] = {}
    layers = find_layers(model, frozen=True)[0]
    names = {one.module: one.spec.name for one in layers if is_counted(one)}
    if other := [one.spec.name for one in layers if not is_counted(one)]:
        warnings.warn(f"not counted, because their use cannot be seen from outside: {', '.join(other)}", stacklevel=2)

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


def is_counted(layer: Found) -> bool:
    """Whether a module applies its one weight to every position of its input or output."""
    return layer.attribute == "weight" and layer.spec.stack == 1 and not isinstance(layer.module, nn.Bilinear)


def macs(counts: Mapping[str, int], applied: Mapping[str, int]) -> int:
    """Multiply-accumulates of a network with these many weights per layer.

    >>> macs({"conv": 9, "head": 20}, {"conv": 64, "head": 1})
    596
    """
    return sum(count * applied.get(name, 0) for name, count in counts.items())


def ranked_steps(method: Method, steps: int) -> Collection[int]:
    """The steps of a training whose gradient is dense, because the method ranks weights that do not exist.

    Where momentum is ranked (SNFS) that is every step; where gradients are (RigL, GGR), every step that the schedule
    names, whether or not the rewiring moved a weight: it was ranked before that was known.

    >>> from rewire.methods import rigl, set_
    >>> ranked_steps(rigl(density=0.1, every=4, until=10), steps=20)
    [4, 8]
    >>> ranked_steps(set_(density=0.1, every=4, until=10), steps=20)
    []
    """
    if Signal.MOMENTUM in method.ranks:
        return range(1, steps + 1)
    return [step for step in range(1, steps + 1) if Signal.GRAD in method.ranks and method.schedule(step) is not None]


def training_macs(
    initial: Mapping[str, int],
    sizes: Mapping[str, int],
    applied: Mapping[str, int],
    history: Sequence[Rewiring],
    steps: int,
    ranked: Collection[int] = (),
) -> int:
    """Multiply-accumulates of a training of ``steps`` steps, per example of a batch, along the real densities.

    Counted as in RigL's paper: a step costs the forward pass three times, ``3 f_S`` (forward, gradient of the inputs,
    gradient of the weights). At the ``ranked`` steps the gradient of the weights is dense: ``2 f_S + f_D``. So it is
    at a rewiring that was put off until its gradients were finite, in a training that ranks at all.

    >>> training_macs({"a": 2}, {"a": 10}, {"a": 1}, [Rewiring(4, 0.5, [1], [1], [0])], steps=8, ranked=[4, 8])
    64
    """
    dense = macs(sizes, applied)
    whole = sorted({*ranked, *(one.step for one in history)}) if ranked else []
    now, total, done = dict(initial), 0, 0
    for step, one in [*((one.step, one) for one in history), (steps, None)]:
        sparse = macs(now, applied)
        total += 3 * sparse * (step - done) + (dense - sparse) * (bisect_right(whole, step) - bisect_right(whole, done))
        done = step
        if one is not None:
            now = {n: now[n] - d + g for n, d, g in zip(now, one.dropped, one.grown, strict=True)}
    return total
