"""What the networks share: checks, layers, heads and the initial weights."""

import math
from collections.abc import Sequence

from torch import nn

Image = tuple[int, int, int]  # channels, height, width

LARGE = 64  # from this height and width on, the large-image form of a network is built


def check_arguments(name: str, classes: int, image: Image, width: float, *, smallest: int) -> None:
    """Refuse what cannot be built; `smallest` is the side that leaves every stage of the network at least one pixel."""
    if classes < 1:
        raise ValueError(f"{name} was asked for {classes} classes: give at least 1.")
    if not 0 < width < math.inf:
        raise ValueError(f"{name} was asked for width {width}: give a positive number; 1.0 is the full network.")
    if len(image) != 3 or min(image) < 1:
        raise ValueError(f"{name} was given image {image}: give three positive numbers (channels, height, width).")
    if min(image[1:]) < smallest:
        raise ValueError(
            f"{name} needs images of at least {smallest}x{smallest} and was given {image[1]}x{image[2]}: "
            "its pools and strides would leave no pixel. Use larger images, or vgg-small (from 8x8) or mlp (any size)."
        )


def is_large(image: Image) -> bool:
    """Whether the form for large images is built."""
    return min(image[1:]) >= LARGE


def stem_stride(image: Image) -> int:
    """The stride of the first convolution."""
    return 2 if is_large(image) else 1


def scaled(size: int, width: float) -> int:
    """Channels at a width, at least one."""
    return max(1, round(size * width))


def conv_norm(
    inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, groups: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """A convolution that keeps the resolution at stride 1, and its batch norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    return conv, nn.BatchNorm2d(outputs)


def average_head(features: int, classes: int) -> tuple[nn.Module, ...]:
    """The mean of each channel, then one linear layer."""
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes)


def dense_head(features: int, hidden: Sequence[int], classes: int, width: float) -> list[nn.Module]:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for base in hidden:
        units = scaled(base, width)
        layers += [nn.Linear(features, units), nn.ReLU()]
        features = units
    return [*layers, nn.Linear(features, classes)]


def initialise(model: nn.Module) -> nn.Module:
    """Draw every Conv and Linear weight from Kaiming uniform (fan in, gain of ReLU) and set biases to zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_uniform_(module.weight, mode="fan_in", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
