"""MobileNetV2 (Sandler et al., 2018)."""

from torch import Tensor, nn

from rewire.lab.models.layers import Image, average_head, check_arguments, conv_norm, initialise, stem_stride
from rewire.lab.models.registry import register


class InvertedResidual(nn.Module):
    """Expand with 1x1, filter each channel with 3x3, project with 1x1; add the input where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        expansion = [] if expand == 1 else [*conv_norm(inputs, hidden, kernel=1), nn.ReLU6()]
        self.layers = nn.Sequential(
            *expansion,
            *conv_norm(hidden, hidden, stride=stride, groups=hidden),
            nn.ReLU6(),
            *conv_norm(hidden, outputs, kernel=1),
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


@register("mobilenet-v2", label="MobileNetV2", scales_evenly=False)
def mobilenet_v2(*, classes: int, image: Image, width: float = 1.0) -> nn.Module:
    """MobileNetV2 with batch norm and ReLU6 (Sandler et al., 2018).

    Stem stride 1 and second stage stride 1 for small images; stem stride 2 for large ones. Channels are multiples of 8
    and the last convolution never has fewer than 1280, as in the original, whatever the width.
    """
    check_arguments("mobilenet-v2", classes, image, width, smallest=8)
    return _mobilenet(classes, image, width, stem_stride(image))


@register("mobilenet-v2-stride2", label="MobileNetV2 (stem stride 2)", scales_evenly=False)
def mobilenet_v2_stride2(*, classes: int, image: Image, width: float = 1.0) -> nn.Module:
    """MobileNetV2 with stem stride 2 for small images too: the same weights in about a quarter of the time."""
    check_arguments("mobilenet-v2-stride2", classes, image, width, smallest=8)
    return _mobilenet(classes, image, width, stride=2)


def _mobilenet(classes: int, image: Image, width: float, stride: int) -> nn.Module:
    channels = _multiple_of_8(32 * width)
    layers: list[nn.Module] = [*conv_norm(image[0], channels, stride=stride), nn.ReLU6()]
    for expand, base, blocks, first_stride in _MOBILENET_STAGES:
        for block in range(blocks):
            outputs = _multiple_of_8(base * width)
            layers.append(InvertedResidual(channels, outputs, first_stride if block == 0 else 1, expand))
            channels = outputs
    last = _multiple_of_8(1280 * max(1.0, width))
    layers += [*conv_norm(channels, last, kernel=1), nn.ReLU6()]
    return initialise(nn.Sequential(*layers, *average_head(last, classes)))


def _multiple_of_8(channels: float) -> int:
    """Round to a multiple of 8, at least 8 and never more than 10 % down: the rule of the MobileNet authors."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded
