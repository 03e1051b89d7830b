"""One small training that runs alone, under DDP and under FSDP2, on the same global batches."""

import dataclasses

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import rewire

STEPS, EVERY = 4, 2

FOR_LINEAR_LAYERS = [name for name, entry in rewire.METHODS.items() if hasattr(entry.example().grow, "refuse")]


def network(dtype=torch.float64, convolution=True):
    """Layers whose rows divide evenly by no number of ranks; one has fewer rows than there are ranks."""
    torch.manual_seed(0)
    convolved = nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 5, 3, padding=1), nn.Tanh(), nn.Flatten()
    return nn.Sequential(
        *(convolved if convolution else (nn.Linear(12, 60), nn.Tanh())),
        nn.Linear(60, 7),
        nn.Tanh(),
        nn.Linear(7, 3),
        nn.Tanh(),
        nn.Linear(3, 4),
    ).to(dtype)


def batch(step, dtype=torch.float64):
    """This process's share of the global batch of 24."""
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(24, 12, generator=generator, dtype=dtype), torch.randint(4, (24,), generator=generator)
    if dist.is_initialized():
        mine = slice(dist.get_rank(), None, dist.get_world_size())
        x, y = x[mine], y[mine]
    return x, y


def make(name, parts=None, **settings):
    method = rewire.METHODS[name](**{"density": 0.3, "every": EVERY, "until": 100, "fraction": 0.4} | settings)
    return dataclasses.replace(method, **parts or {})


def optimize(model):
    return torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9, weight_decay=5e-4)


def sparse(name, how="alone", optimizer=optimize, init=None, **settings):
    """A model, its optimizer and its rewirer: alone, in ``ddp`` before or after sparsify, or in ``fsdp``."""
    model, method = network(convolution=name not in FOR_LINEAR_LAYERS), make(name, **settings)
    if how == "fsdp":
        fully_shard(model)
    if how == "wrapped first":
        model = DistributedDataParallel(model)
    made = optimizer(model)
    rewirer = rewire.sparsify(model, made, method, init=init, seed=5)
    if how == "wrapped last":
        model = DistributedDataParallel(model)
    return model, made, rewirer


def step(model, optimizer, number):
    x, y = batch(number)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def seen(rewirer):
    """Everything about the topology, and the weights: what this process holds of them."""
    return {
        "starts": [layer.span.start for layer in rewirer.layers],
        "masks": [layer.local_mask.flatten().clone() for layer in rewirer.layers],
        "weights": [layer.weight.flatten().clone() for layer in rewirer.layers],
        "nnz": [layer.nnz for layer in rewirer.layers],
        "history": list(rewirer.history),
        "memory": dict(rewirer.memory),
    }


def train(name, how="alone", steps=STEPS, **settings):
    """The state after every step."""
    model, optimizer, rewirer = sparse(name, how, **settings)
    states = [seen(rewirer)]
    for number in range(steps):
        step(model, optimizer, number)
        states.append(seen(rewirer))
    return states


def same(held, alone):
    """What a rank holds at every step is its part of the same topology; weights up to the order of summation."""
    assert len(held) == len(alone)
    for a, b in zip(held, alone, strict=True):
        assert a["nnz"] == b["nnz"]
        assert a["history"] == b["history"]
        assert a["memory"] == b["memory"]
        for i, start in enumerate(a["starts"]):
            part = slice(start, start + len(a["masks"][i]))
            assert torch.equal(a["masks"][i], b["masks"][i][part]), i
            torch.testing.assert_close(a["weights"][i], b["weights"][i][part], rtol=1e-9, atol=1e-11)
