"""Constraints under DDP: the ranks rewire as one process does. Sharded layers are refused on every rank."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.distributed.ranks import run
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import rewire
from rewire.parts import NM, Blocks, Channels, FanIn

CONSTRAINTS = [NM(2, 4), FanIn(0.3), Blocks(4), Channels()]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def topologies():
    """After seven steps of GGR under each constraint, on this process's share of the batches."""
    found = []
    for constraint in CONSTRAINTS:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        method = rewire.ggr(density=0.3, every=2, until=100, fraction=0.4, constraint=constraint)
        rewirer = rewire.sparsify(model, optimizer, method)
        wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
        for step in range(7):
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(24, 12, generator=generator, dtype=torch.float64)
            y = torch.randint(4, (24,), generator=generator)
            if dist.is_initialized():
                x, y = x[dist.get_rank() :: 2], y[dist.get_rank() :: 2]
            F.cross_entropy(wrapped(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            rewirer.check()
        assert len(rewirer.history) == 3
        found.append([layer.active().tolist() for layer in rewirer.layers])
    return found


def refused():
    model = network()
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    try:
        rewire.sparsify(model, optimizer, rewire.ggr(density=0.3, every=2, until=9, constraint=NM(2, 4)))
    except ValueError as error:
        return str(error)
    return ""


def test_two_ranks_are_one_process(tmp_path):
    first, second = run(topologies, 2, tmp_path / "ranks")
    assert first == second == topologies()


def test_sharded_layers_are_refused(tmp_path):
    for sentence in run(refused, 2, tmp_path / "ranks"):
        assert "0 is sharded, and NM(n=2, m=4) needs whole layers: use DistributedDataParallel" in sentence
