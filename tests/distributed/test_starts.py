"""Starts that read data or weights on several ranks: the same topology everywhere, or an error on all ranks."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from tests.distributed.ranks import run
from tests.distributed.training import batch, network
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import rewire
from rewire.parts import Snip


def whole_batch(model):
    torch.manual_seed(3)
    return model(torch.randn(24, 12, dtype=torch.float64)).square().mean()


def own_share(model):
    return model(batch(0)[0]).square().mean()  # of the global batch: another one on each rank


def by_rank(specs, n, ctx):
    """A start of one's own that is not the same everywhere."""
    return rewire.parts.STARTS["erk"](specs, n, replace(ctx, seed=dist.get_rank()))


def everywhere(specs, n, ctx):
    """A start of one's own, a function without a name that says what it reads."""
    return rewire.parts.STARTS["erk"](specs, n, ctx)


def attach(how, start):
    model = network()
    if how == "fsdp":
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.3, start=start))
    except (RuntimeError, ValueError) as error:
        return str(error)
    return [layer.active().tolist() for layer in rewirer.layers]


def test_ranks_that_read_the_same_batch_start_alike(tmp_path):
    for number, start in enumerate((Snip(whole_batch), everywhere)):
        first, second = run(attach, 2, tmp_path / f"ranks{number}", "ddp", start)
        assert isinstance(first, list)
        assert first == second


@pytest.mark.parametrize(
    ("how", "start", "sentence"),
    [
        ("ddp", Snip(own_share), "differently on the ranks: let every rank read the same batch"),
        ("ddp", by_rank, "differently on the ranks: let every rank read the same batch"),
        ("fsdp", Snip(whole_batch), "which is sharded: compute the start before"),
    ],
)
def test_what_cannot_work_is_refused_on_all_ranks(how, start, sentence, tmp_path):
    for error in run(attach, 2, tmp_path / "ranks", how, start):
        assert sentence in error
