"""Vision models written as they are in the wild: weights read by functions, mixed, shared, padded at run time.

Each has the habits of the public model that it is named after, in a few lines of its own.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class SamePadConv2d(nn.Conv2d):
    """efficientnet_pytorch: TensorFlow's padding, computed from the size of each input."""

    def forward(self, x):
        pads = [
            max((-(-size // stride) - 1) * stride + kernel - size, 0)
            for size, stride, kernel in zip(x.shape[-2:], self.stride, self.weight.shape[-2:], strict=True)
        ]
        x = F.pad(x, [pads[1] // 2, pads[1] - pads[1] // 2, pads[0] // 2, pads[0] - pads[0] // 2])
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class InvertedResidual(nn.Module):
    def __init__(self, width, hidden, stride, conv=nn.Conv2d, act=nn.SiLU):
        super().__init__()
        padding = {} if conv is SamePadConv2d else {"padding": 1}
        self.residual = stride == 1
        self.expand = nn.Sequential(conv(width, hidden, 1, bias=False), nn.BatchNorm2d(hidden), act())
        depthwise = conv(hidden, hidden, 3, stride, groups=hidden, bias=False, **padding)
        self.depthwise = nn.Sequential(depthwise, nn.BatchNorm2d(hidden), act())
        self.squeeze, self.excite = conv(hidden, 4, 1), conv(4, hidden, 1)
        self.project = nn.Sequential(conv(hidden, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.depthwise(self.expand(x))
        gate = self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1))))
        y = self.project(y * F.hardsigmoid(gate))
        return x + y if self.residual else y


class EfficientNet(nn.Module):
    def __init__(self, conv=SamePadConv2d, act=nn.SiLU):
        super().__init__()
        padding = {} if conv is SamePadConv2d else {"padding": 1}
        self.stem = nn.Sequential(conv(3, 8, 3, 2, bias=False, **padding), nn.BatchNorm2d(8), act())
        self.blocks = nn.Sequential(InvertedResidual(8, 16, 1, conv, act), InvertedResidual(8, 16, 2, conv, act))
        self.classifier = nn.Linear(8, 5)

    def forward(self, x):
        return self.classifier(self.blocks(self.stem(x)).mean((2, 3)))


class SamePadding(nn.Module):
    """Padding by torch's own name for it, and one-dimensional convolutions."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding="same")
        self.along = nn.Conv1d(8, 8, 5, padding="same", dilation=2)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(F.relu(self.along(F.relu(self.conv(x)).mean(3))).amax(2))


class ConvNeXtBlock(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.pwconv1, self.pwconv2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x):
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.block, self.head = nn.Conv2d(3, 12, 4, 4), ConvNeXtBlock(), nn.Linear(12, 5)

    def forward(self, x):
        return self.head(self.block(self.stem(x)).mean((2, 3)))


class CondConv2d(nn.Module):
    """Conditionally parameterised convolution: each row of ``weight`` is a flattened kernel, mixed per example."""

    def __init__(self, inputs, outputs, kernel=3, num_experts=3):
        super().__init__()
        self.weight_shape, self.num_experts, self.groups = (outputs, inputs, kernel, kernel), num_experts, 1
        self.weight = nn.Parameter(torch.randn(num_experts, math.prod(self.weight_shape)) * 0.2)

    def forward(self, x, routing):
        kernels = (routing @ self.weight).view(len(x) * self.weight_shape[0], *self.weight_shape[1:])
        y = F.conv2d(x.reshape(1, -1, *x.shape[2:]), kernels, padding=1, groups=len(x))
        return y.view(len(x), -1, *y.shape[2:])


class CondConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.routing, self.conv, self.head = nn.Linear(3, 3), CondConv2d(3, 8), nn.Linear(8, 5)

    def forward(self, x):
        routing = torch.sigmoid(self.routing(x.mean((2, 3))))
        return self.head(F.relu(self.conv(x, routing)).mean((2, 3)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = self._block(3, 8), self._block(8, 16)
        self.up, self.merge = nn.ConvTranspose2d(16, 8, 2, 2), self._block(16, 8)
        self.out = nn.Conv2d(8, 2, 1)

    def _block(self, inputs, outputs):
        layers = (nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))
        return nn.Sequential(*layers)

    def forward(self, x):
        first = self.down1(x)
        return self.out(self.merge(torch.cat([self.up(self.down2(F.max_pool2d(first, 2))), first], 1)))


class ResNet(nn.Module):
    """Torchvision's manner: layers by name, one ReLU for all, sums in place, a bottleneck with groups."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 16, 3, 2, 1, groups=4, bias=False), nn.BatchNorm2d(16)
        self.conv3, self.bn3 = nn.Conv2d(16, 24, 1, bias=False), nn.BatchNorm2d(24)
        self.downsample = nn.Sequential(nn.Conv2d(16, 24, 1, 2, bias=False), nn.BatchNorm2d(24))
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(24, 5)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(x)))))
        y += self.downsample(x)
        return self.fc(torch.flatten(self.avgpool(self.relu(y)), 1))


class ShuffleNet(nn.Module):
    """Half of the channels pass by; then all are shuffled."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.branch = nn.Sequential(
            *(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.BatchNorm2d(8))
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        one, two = self.stem(x).chunk(2, 1)
        x = torch.cat([one, self.branch(two)], 1)
        x = x.view(len(x), 2, 8, *x.shape[2:]).transpose(1, 2).flatten(1, 2)
        return self.head(x.mean((2, 3)))


class StdConv2d(nn.Conv2d):
    """Weight standardisation: what is applied is computed from the weight at every pass."""

    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        weight = weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class StandardisedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = StdConv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))


class Penalised(nn.Module):
    """A weight that is applied and read besides: orthogonality and size enter the output."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(48, 16), nn.Linear(16, 5)

    def forward(self, x):
        y = self.second(F.relu(self.first(F.avg_pool2d(x, 8).flatten(1))))
        return y + self.first.weight.pow(2).mean() + self.second.weight.abs().sum()


class Siamese(nn.Module):
    """One tower for two inputs, and one layer under two names."""

    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 256, 8))
        self.left = nn.Linear(8, 8)
        self.right = self.left
        self.twin = nn.Linear(8, 8)
        self.twin.weight = self.left.weight

    def forward(self, x):
        one, two = self.tower(x), self.tower(x.flip(3))
        return self.twin(F.relu(self.left(one) - self.right(two)))


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.points = nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 16, 1))
        self.transform, self.head = nn.Linear(16, 9), nn.Linear(16, 5)

    def forward(self, x):
        x = x.flatten(2)[..., :64]
        turn = self.transform(self.points(x).amax(2)).view(-1, 3, 3)
        return self.head(self.points(turn @ x).amax(2))


class Volume(nn.Module):
    """A three-dimensional network, as for medical images."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv3d(1, 4, 3, 2, 1)
        self.norm, self.act = nn.InstanceNorm3d(4, affine=True), nn.PReLU(4)
        self.up = nn.ConvTranspose3d(4, 2, 2, 2)

    def forward(self, x):
        return self.up(self.act(self.norm(self.down(x[:, None, :2, :16, :16]))))
