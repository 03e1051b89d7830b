"""The networks of the paper's evaluation and two small ones, in plain ``torch.nn``.

Every network is built for one image size, given as (channels, height, width), and comes in two forms:

- *small images* (below 64x64, such as CIFAR): the first convolution keeps the resolution, with no pooling after it;
- *large images* (64x64 and above, such as Tiny-ImageNet): MobileNetV2 and ResNet-18 halve the image in the first
  convolution, so that every later map has the size it has for 32x32; VGG16 loses its last block, as in the paper.

Three rules hold for all of them. Convolutions have no bias where batch norm follows. There is no dropout: the paper
names none, and it would draw from the global generator during training, which a resumed run could not repeat.
Activations are not in place, so that hooks and analyses still see what a layer returned.

Weights are Kaiming uniform as in the paper, biases zero. `forward` has no control flow that depends on data: every
network can be traced with ``torch.fx.symbolic_trace``.
"""

import difflib
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Image = tuple[int, int, int]  # channels, height, width

LARGE = 64  # from this height and width on, the large-image form of a network is built


def build(
    name: str, *, classes: int, image: tuple[int, int, int], width: float = 1.0, seed: int | None = None
) -> nn.Module:
    """Return a freshly initialised network.

    Args:
        name: a key of `MODELS`.
        classes: number of outputs.
        image: (channels, height, width) of one input.
        width: multiplies the channels and hidden units of every layer but the input and the output.
        seed: draws the weights from this seed and leaves the global generator as it was; without it they are drawn
            from the global generator, as PyTorch's own layers do.

    >>> build("mlp", classes=10, image=(1, 8, 8))(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])

    """
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown model {name!r}: {hint}The known ones are {', '.join(MODELS)}.")
    if seed is None:
        return MODELS[name](classes=classes, image=image, width=width)
    # The constructors of torch.nn draw from the global generator too: only a fork keeps both apart.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return MODELS[name](classes=classes, image=image, width=width)


def weights(model: nn.Module) -> int:
    """Count the weights of the Conv and Linear layers: those that can be sparse. Biases and norms are left out.

    >>> weights(mlp(classes=10, image=(1, 8, 8)))
    50200
    """
    return sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))


# -- MobileNetV2 -------------------------------------------------------------------------------------------------------


class InvertedResidual(nn.Module):
    """Expand with 1x1, filter each channel with 3x3, project with 1x1; add the input where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        expansion = [] if expand == 1 else [*_conv_norm(inputs, hidden, kernel=1), nn.ReLU6()]
        self.layers = nn.Sequential(
            *expansion,
            *_conv_norm(hidden, hidden, stride=stride, groups=hidden),
            nn.ReLU6(),
            *_conv_norm(hidden, outputs, kernel=1),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


# Expansion, channels, blocks, stride of the first block (table 2 of the MobileNetV2 paper). The second stage has stride
# 1 instead of 2, the usual change for small images: with the stem's, it leaves maps of 4x4 instead of a single pixel.
_MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(*, classes: int, image: Image, width: float = 1.0) -> nn.Module:
    """MobileNetV2 with batch norm and ReLU6 (Sandler et al., 2018).

    Stem stride 1 and second stage stride 1 for small images; stem stride 2 for large ones. Channels are multiples of 8
    and the last convolution never has fewer than 1280, as in the original, whatever the width.
    """
    _check("mobilenet-v2", classes, image, width, smallest=8)
    channels = _multiple_of_8(32 * width)
    layers: list[nn.Module] = [*_conv_norm(image[0], channels, stride=_stem_stride(image)), nn.ReLU6()]
    for expand, base, blocks, stride in _MOBILENET_STAGES:
        for block in range(blocks):
            outputs = _multiple_of_8(base * width)
            layers.append(InvertedResidual(channels, outputs, stride if block == 0 else 1, expand))
            channels = outputs
    last = _multiple_of_8(1280 * max(1.0, width))
    layers += [*_conv_norm(channels, last, kernel=1), nn.ReLU6()]
    return _initialise(nn.Sequential(*layers, *_average_head(last, classes)))


def _multiple_of_8(channels: float) -> int:
    """Round to a multiple of 8, at least 8 and never more than 10 % down: the rule of the MobileNet authors."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


# -- ResNet-18 ---------------------------------------------------------------------------------------------------------


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, projected with 1x1 where the shapes differ."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_conv_norm(inputs, outputs, stride=stride), nn.ReLU(), *_conv_norm(outputs, outputs)
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_conv_norm(inputs, outputs, kernel=1, stride=stride))
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""
        y: Tensor = self.activation(self.layers(x) + self.shortcut(x))
        return y


def resnet18(*, classes: int, image: Image, width: float = 1.0) -> nn.Module:
    """ResNet-18 with a 3x3 stem and no max pooling (He et al., 2016, in the form common for CIFAR).

    For large images the same 3x3 stem has stride 2: a 64x64 image then costs what a 32x32 image costs and no weight
    changes, whereas the original 7x7 stem with pooling would leave 2x2 maps at the end.
    """
    _check("resnet-18", classes, image, width, smallest=8)
    channels = _scaled(64, width)
    layers: list[nn.Module] = [*_conv_norm(image[0], channels, stride=_stem_stride(image)), nn.ReLU()]
    for base, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        outputs = _scaled(base, width)
        layers += [BasicBlock(channels, outputs, stride), BasicBlock(outputs, outputs, 1)]
        channels = outputs
    return _initialise(nn.Sequential(*layers, *_average_head(channels, classes)))


# -- VGG ---------------------------------------------------------------------------------------------------------------

_VGG16_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(*, classes: int, image: Image, width: float = 1.0) -> nn.Module:
    """VGG16 with batch norm after every convolution (Simonyan and Zisserman, 2015) and two hidden layers of 4096.

    Small images (32x32): all 13 convolutions and 5 pools, which leave 512 features of one pixel for the head
    512 - 4096 - 4096 - classes. Large images (64x64): the last block and its pool are removed, as in the paper, which
    leaves 10 convolutions and 512 maps of 4x4 for the head 8192 - 4096 - 4096 - classes; with 200 classes these are the
    paper's 58.8 million weights.
    """
    _check("vgg16", classes, image, width, smallest=32)
    blocks = _VGG16_BLOCKS[:-1] if _is_large(image) else _VGG16_BLOCKS
    return _vgg(blocks, (4096, 4096), classes, image, width)


def vgg_small(*, classes: int, image: Image, width: float = 1.0) -> nn.Module:
    """Six convolutions with batch norm in three blocks and one hidden layer: VGG for 8x8 digits up to 32x32 images."""
    _check("vgg-small", classes, image, width, smallest=8)
    return _vgg(((32, 32), (64, 64), (128, 128)), (256,), classes, image, width)


def _vgg(blocks: Sequence[Sequence[int]], hidden: Sequence[int], classes: int, image: Image, width: float) -> nn.Module:
    channels, height, breadth = image
    layers: list[nn.Module] = []
    for block in blocks:
        for base in block:
            outputs = _scaled(base, width)
            layers += [*_conv_norm(channels, outputs), nn.ReLU()]
            channels = outputs
        layers.append(nn.MaxPool2d(2))
        height, breadth = height // 2, breadth // 2
    return _initialise(nn.Sequential(*layers, *_dense_head(channels * height * breadth, hidden, classes, width)))


# -- MLP ---------------------------------------------------------------------------------------------------------------


def mlp(*, classes: int, image: Image, width: float = 1.0) -> nn.Module:
    """Flatten, then hidden layers of 300 and 100 units: the LeNet-300-100 of the pruning literature."""
    _check("mlp", classes, image, width, smallest=1)
    return _initialise(nn.Sequential(*_dense_head(math.prod(image), (300, 100), classes, width)))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "mobilenet-v2": mobilenet_v2,
    "resnet-18": resnet18,
    "vgg16": vgg16,
    "vgg-small": vgg_small,
    "mlp": mlp,
}


# -- what they share ---------------------------------------------------------------------------------------------------


def _check(name: str, classes: int, image: Image, width: float, *, smallest: int) -> None:
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


def _is_large(image: Image) -> bool:
    return min(image[1:]) >= LARGE


def _stem_stride(image: Image) -> int:
    return 2 if _is_large(image) else 1


def _scaled(size: int, width: float) -> int:
    return max(1, round(size * width))


def _conv_norm(
    inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, groups: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    return conv, nn.BatchNorm2d(outputs)


def _average_head(features: int, classes: int) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes)


def _dense_head(features: int, hidden: Sequence[int], classes: int, width: float) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Flatten()]
    for base in hidden:
        units = _scaled(base, width)
        layers += [nn.Linear(features, units), nn.ReLU()]
        features = units
    return [*layers, nn.Linear(features, classes)]


def _initialise(model: nn.Module) -> nn.Module:
    """Draw every Conv and Linear weight from Kaiming uniform (fan in, gain of ReLU) and set biases to zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_uniform_(module.weight, mode="fan_in", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
