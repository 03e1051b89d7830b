"""Networks to write to files, and ways to damage the files."""

import random

import torch

import rewire
from rewire.lab import models


def network(density=0.03, name="vgg-small", width=0.5):
    model = models.build(name, classes=10, image=(1, 8, 8), width=width, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewire.sparsify(model, optimizer, rewire.static(density=density))
    return model.eval()


def plain(name="vgg-small", width=0.5, seed=1):
    return models.build(name, classes=10, image=(1, 8, 8), width=width, seed=seed).eval()


X = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def corrupted(data: bytes, rng: random.Random) -> bytes:
    """Cut, flipped, overwritten, or with another length of the header."""
    damaged = bytearray(data)
    kind = rng.randrange(4)
    if kind == 0:
        return bytes(damaged[: rng.randrange(len(damaged))])
    if kind == 1:
        for _ in range(rng.randrange(1, 9)):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        at = rng.randrange(min(len(damaged), 2000))
        damaged[at : at + rng.randrange(1, 40)] = rng.randbytes(rng.randrange(40))
    else:
        damaged[: rng.randrange(1, 9)] = rng.randbytes(8)[: rng.randrange(1, 9)]
    return bytes(damaged)
