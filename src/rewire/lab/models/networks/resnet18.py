"""ResNet-18 (He et al., 2016)."""

from torch import Tensor, nn

from rewire.lab.models.layers import Image, average_head, check_arguments, conv_norm, initialise, scaled, stem_stride
from rewire.lab.models.registry import register


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, projected with 1x1 where the shapes differ."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*conv_norm(inputs, outputs, stride=stride), nn.ReLU(), *conv_norm(outputs, outputs))
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*conv_norm(inputs, outputs, kernel=1, stride=stride))
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""
        y: Tensor = self.activation(self.layers(x) + self.shortcut(x))
        return y


@register("resnet-18", label="ResNet-18")
def resnet18(*, classes: int, image: Image, width: float = 1.0) -> nn.Module:
    """ResNet-18 with a 3x3 stem and no max pooling (He et al., 2016, in the form common for CIFAR).

    For large images the same 3x3 stem has stride 2: a 64x64 image then costs what a 32x32 image costs and no weight
    changes, whereas the original 7x7 stem with pooling would leave 2x2 maps at the end.
    """
    check_arguments("resnet-18", classes, image, width, smallest=8)
    return _resnet18(classes, image, width, stem_stride(image))


@register("resnet-18-stride2", label="ResNet-18 (stem stride 2)")
def resnet18_stride2(*, classes: int, image: Image, width: float = 1.0) -> nn.Module:
    """ResNet-18 with stem stride 2 for small images too: the same weights in a third of the time."""
    check_arguments("resnet-18-stride2", classes, image, width, smallest=8)
    return _resnet18(classes, image, width, stride=2)


def _resnet18(classes: int, image: Image, width: float, stride: int) -> nn.Module:
    channels = scaled(64, width)
    layers: list[nn.Module] = [*conv_norm(image[0], channels, stride=stride), nn.ReLU()]
    for base, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        outputs = scaled(base, width)
        layers += [BasicBlock(channels, outputs, stride), BasicBlock(outputs, outputs, 1)]
        channels = outputs
    return initialise(nn.Sequential(*layers, *average_head(channels, classes)))
