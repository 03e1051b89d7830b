"""Small networks, optimizers and loops that many tests share."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=5e-4),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=1e-3, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True, weight_decay=1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, weight_decay=1e-3),
}


def mlp(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)


def cnn(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12 * 9, 4),
    )


def network_for(method):
    """A network with convolutions and the shape of its input; without them for methods of linear layers."""
    return (mlp(), (12,)) if method == "chts" else (cnn(), (3, 6, 6))


def batch(step, shape=(12,), size=16, dtype=torch.float32):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, *shape, generator=generator, dtype=dtype)
    return x, torch.randint(4, (size,), generator=generator)


def train(model, optimizer, steps, begin=0, shape=(12,), size=16, dtype=torch.float32, autocast=False, after=None):
    """An ordinary loop that knows nothing about sparsity."""
    losses = []
    for step in range(begin, begin + steps):
        x, y = batch(step, shape, size, dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if after is not None:
            after(step)
    return losses
