"""Attention projections and expert stacks under DDP and FSDP2: the topology is that of a single process."""

import pytest
import torch
import torch.distributed as dist
from tests.distributed.ranks import run
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import rewire


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, 8, 6) / 4)

    def forward(self, x):
        return torch.einsum("bti,eio->bto", x, self.up)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.experts = nn.MultiheadAttention(8, 2, batch_first=True), Experts()
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        return self.head(self.experts(self.attention(x, x, x, need_weights=False)[0]).mean(1))


def trained(how):
    rewire.register(Experts, weight="up", stack=0, inputs=1, outputs=2)
    torch.manual_seed(0)
    model = Network().double()
    if how == "fsdp":
        fully_shard(model)
    elif how == "ddp":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rewirer = rewire.sparsify(model, optimizer, rewire.rigl(density=0.3, every=2, until=100, fraction=0.4))
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        x, y = (
            torch.randn(8, 3, 8, generator=generator, dtype=torch.float64),
            torch.randint(4, (8,), generator=generator),
        )
        if dist.is_initialized():
            x, y = x[dist.get_rank() :: 2], y[dist.get_rank() :: 2]
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {layer.name: layer.active().tolist() for layer in rewirer.layers}


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_two_ranks_have_the_topology_of_one(how, tmp_path):
    alone = trained("alone")
    assert list(alone) == ["attention.in_proj_weight", "attention.out_proj", "experts.up", "head"]
    ranks = run(trained, 2, tmp_path, how)
    for name, positions in alone.items():
        together = ranks[0][name] if how == "ddp" else ranks[0][name] + ranks[1][name]
        assert together == positions
