"""A new network by its name."""

import inspect

import torch
from torch import nn

from rewire.lab.models.registry import MODELS
from rewire.lab.references import Code


def build(
    name: str,
    *,
    classes: int,
    image: tuple[int, int, int],
    width: float = 1.0,
    seed: int | None = None,
    code: Code | None = None,
) -> nn.Module:
    """Return a freshly initialised network.

    Args:
        name: a key of `MODELS`, or a reference to a function of one's own (``file.py:function``).
        classes: number of outputs.
        image: (channels, height, width) of one input.
        width: multiplies the channels and hidden units of every layer but the input and the output.
        seed: draws the weights from this seed and leaves the global generator as it was; without it they are drawn
            from the global generator, as PyTorch's own layers do.
        code: what a run recorded of the function; it must not have changed.

    >>> build("mlp", classes=10, image=(1, 8, 8))(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])

    """
    network = MODELS.find(name, code)
    options = {"classes": classes, "image": image, "width": width}
    taken = inspect.signature(network.function).parameters
    if "width" not in taken and width != 1.0:
        raise ValueError(f"{name} has no argument width, so --width {width:g} would have no effect: leave it out")
    options = {key: value for key, value in options.items() if key in taken}
    if seed is None:
        return network(**options)
    # The constructors of torch.nn draw from the global generator too: only a fork keeps both apart.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return network(**options)


def weights(model: nn.Module) -> int:
    """Count the weights of the Conv and Linear layers: those that can be sparse. Biases and norms are left out.

    >>> weights(build("mlp", classes=10, image=(1, 8, 8)))
    50200
    """
    return sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))
