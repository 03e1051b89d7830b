"""Networks held by either store, and what is compared between them."""

import torch
from tests.networks import OPTIMIZERS, mlp
from torch import nn

import rewire
from rewire.core.layer import Signal

IMAGE = (3, 8, 8)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.shortcut = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.first(x)
        return self.head((self.block(x) + self.shortcut(x)).mean((2, 3)))


class InPlace(nn.Module):
    """A residual block as it is often written: its layers by name, its sums and activations in place."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.relu, self.pool, self.drop = nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.0, inplace=True)
        self.hidden, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = self.conv1(x)
        x *= 2.0
        identity = self.relu(self.bn1(x))
        y = self.bn2(self.conv2(identity))
        y += identity
        y = self.pool(self.relu(y))
        y += 1.0
        y = self.hidden(y.mean((2, 3)))
        y += 1.0
        return self.head(self.relu(self.drop(y)))


def vgg():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 4)),
    )


NETWORKS = {"mlp": (mlp, (12,)), "vgg": (vgg, IMAGE), "residual": (Residual, IMAGE), "in place": (InPlace, IMAGE)}


def sparse(store="packed", network="mlp", method=None, optimizer="momentum", dtype=torch.float64, **options):
    torch.manual_seed(0)
    model = NETWORKS[network][0]().to(dtype)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    method = method or rewire.ggr(density=0.3, every=5, until=100, fraction=0.3)
    return model, optimizer, rewire.sparsify(model, optimizer, method, store=store, **options)


def topology(rewirer):
    return [layer.active().tolist() for layer in rewirer.layers]


def weights(rewirer):
    return torch.cat([layer.read(Signal.WEIGHT) for layer in rewirer.layers])
