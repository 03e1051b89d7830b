"""Compiled models under DDP and FSDP2 have the topology of the plain model in one process."""

import torch
from tests.distributed.ranks import run
from tests.distributed.training import EVERY, make, network, optimize, same, seen, step, train
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import rewire


def compiled(model):
    return torch.compile(model, backend="aot_eager")


def ddp_inside(model):
    return compiled(DistributedDataParallel(model))


def ddp_outside(model):
    return DistributedDataParallel(compiled(model))


def fsdp(model):
    fully_shard(model)
    return compiled(model)


def layer_by_layer(model):
    for at in (4, 6):
        model[at].compile(backend="aot_eager")
        fully_shard(model[at])
    return fully_shard(model)


def trained(wrap, wrapped_first=True):
    model = network()
    model = wrap(model) if wrapped_first else model
    optimizer = optimize(model)
    rewirer = rewire.sparsify(model, optimizer, make("ggr"), seed=5)
    model = model if wrapped_first else wrap(model)
    states = [seen(rewirer)]
    for number in range(2 * EVERY):
        step(model, optimizer, number)
        states.append(seen(rewirer))
    return states


def everything():
    first = [trained(wrap) for wrap in (ddp_inside, ddp_outside, fsdp, layer_by_layer)]
    return [*first, *(trained(wrap, wrapped_first=False) for wrap in (ddp_inside, ddp_outside))]


def test_compiled_models_are_rewired_alike(tmp_path):
    alone = train("ggr", steps=2 * EVERY)
    assert alone[-1]["history"]
    for rank in run(everything, 2, tmp_path / "ranks"):
        for states in rank:
            same(states, alone)
