"""VGG16 (Simonyan and Zisserman, 2015) and a small one of its kind."""

from collections.abc import Sequence

from torch import nn

from rewire.lab.models.layers import Image, check_arguments, conv_norm, dense_head, initialise, is_large, scaled
from rewire.lab.models.registry import register

_VGG16_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


@register("vgg16", label="VGG16")
def vgg16(*, classes: int, image: Image, width: float = 1.0) -> nn.Module:
    """VGG16 with batch norm after every convolution (Simonyan and Zisserman, 2015) and two hidden layers of 4096.

    Small images (32x32): all 13 convolutions and 5 pools, which leave 512 features of one pixel for the head
    512 - 4096 - 4096 - classes. Large images (64x64): the last block and its pool are removed, as in the paper, which
    leaves 10 convolutions and 512 maps of 4x4 for the head 8192 - 4096 - 4096 - classes; with 200 classes these are the
    paper's 58.8 million weights.
    """
    check_arguments("vgg16", classes, image, width, smallest=32)
    blocks = _VGG16_BLOCKS[:-1] if is_large(image) else _VGG16_BLOCKS
    return _vgg(blocks, (4096, 4096), classes, image, width)


@register("vgg-small", label="VGG-small")
def vgg_small(*, classes: int, image: Image, width: float = 1.0) -> nn.Module:
    """Six convolutions with batch norm in three blocks and one hidden layer: VGG for 8x8 digits up to 32x32 images."""
    check_arguments("vgg-small", classes, image, width, smallest=8)
    return _vgg(((32, 32), (64, 64), (128, 128)), (256,), classes, image, width)


def _vgg(blocks: Sequence[Sequence[int]], hidden: Sequence[int], classes: int, image: Image, width: float) -> nn.Module:
    channels, height, breadth = image
    layers: list[nn.Module] = []
    for block in blocks:
        for base in block:
            outputs = scaled(base, width)
            layers += [*conv_norm(channels, outputs), nn.ReLU()]
            channels = outputs
        layers.append(nn.MaxPool2d(2))
        height, breadth = height // 2, breadth // 2
    return initialise(nn.Sequential(*layers, *dense_head(channels * height * breadth, hidden, classes, width)))
