"""Multiply-accumulates (MACs) of a forward pass and of a training: active weights times how often each is used."""

import warnings
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from rewire._torch import CONVOLUTION, parameters_of
from rewire.core.layer import Signal
from rewire.core.method import Method, Rewiring
from rewire.model.modes import evaluating
from rewire.model.select import SelectedWeight, find_layers, unwrap


def positions(model: nn.Module, example: Tensor) -> dict[str, int]:
    """How often each weight of a layer is used for one input of the network: output pixels, tokens.

    A weight that several modules share is used by each of them, and a module that is called twice uses it twice.
    How often the weights of ``nn.MultiheadAttention``, experts and recurrent layers are used cannot be told from their
    inputs and outputs: they are not counted, and a warning names them.

    >>> positions(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU()), torch.zeros(1, 1, 8, 8))
    {'0': 64}
    """
    model = unwrap(model)
    uses: dict[str, int] = {}
    layers = find_layers(model, frozen=True)[0]
    names = {id(layer.parameter): layer.spec.name for layer in layers if _is_counted(layer)}
    if other := [layer.spec.name for layer in layers if not _is_counted(layer)]:
        warnings.warn(f"not counted, because their use cannot be seen from outside: {', '.join(other)}", stacklevel=2)

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        name = names[id(parameters_of(module)["weight"])]
        uses[name] = uses.get(name, 0) + _uses_per_input(module, inputs[0], output)

    modules = [module for module in model.modules() if id(parameters_of(module).get("weight")) in names]
    hooks = [module.register_forward_hook(count) for module in modules]
    try:
        with evaluating(model), torch.no_grad():
            model(example)
    finally:
        for hook in hooks:
            hook.remove()
    return uses


def _is_counted(layer: SelectedWeight) -> bool:
    """Whether a module applies its one weight to every position of its input or output."""
    return layer.attribute == "weight" and layer.spec.stack == 1 and not isinstance(layer.module, nn.Bilinear)


def _uses_per_input(module: nn.Module, x: Tensor, y: Tensor) -> int:
    """The pixels of a convolution's output, or of its input if it is transposed; the tokens of a Linear layer."""
    if isinstance(module, CONVOLUTION):
        image = x if module.transposed else y
        return image.shape[-len(module.kernel_size) :].numel()  # from the end: the batch dimension is optional
    return y.shape[1:-1].numel()


def macs(counts: Mapping[str, int], applied: Mapping[str, int]) -> int:
    """MACs of a forward pass: ``counts`` weights per layer, each used ``applied`` times.

    >>> macs({"conv": 9, "head": 20}, {"conv": 64, "head": 1})
    596
    """
    return sum(count * applied.get(name, 0) for name, count in counts.items())


def ranked_steps(method: Method, steps: int) -> Collection[int]:
    """The steps of a training at which the method needs the dense gradient, to rank inactive positions.

    A method that ranks momentum (SNFS) needs it at every step. One that ranks gradients (RigL, GGR) needs it at every
    step that the schedule names, even if no weight moves in the end.

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
    """MACs of a training of ``steps`` steps, per example of a batch, with the densities that the layers really had.

    Counted as in RigL's paper. A step costs three forward passes, ``3 f_S``: forward, gradient of the inputs, gradient
    of the weights. At the ``ranked`` steps the gradient of the weights is dense: ``2 f_S + f_D``. If the method ranks,
    this also holds for a rewiring that was postponed because a gradient was not finite.

    >>> training_macs({"a": 2}, {"a": 10}, {"a": 1}, [Rewiring(4, 0.5, [1], [1], [0])], steps=8, ranked=[4, 8])
    64
    """
    dense = macs(sizes, applied)
    dense_steps = sorted({*ranked, *(rewiring.step for rewiring in history)}) if ranked else []
    counts, total, last = dict(initial), 0, 0
    for step, rewiring in [*((rewiring.step, rewiring) for rewiring in history), (steps, None)]:
        sparse = macs(counts, applied)
        with_dense_gradient = bisect_right(dense_steps, step) - bisect_right(dense_steps, last)
        total += 3 * sparse * (step - last) + (dense - sparse) * with_dense_gradient
        last = step
        if rewiring is not None:
            moves = zip(counts, rewiring.dropped, rewiring.grown, strict=True)
            counts = {name: counts[name] - dropped + grown for name, dropped, grown in moves}
    return total
