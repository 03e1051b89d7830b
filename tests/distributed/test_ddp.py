"""DDP: what is ranked is the all-reduced gradient, ordinary steps send nothing, and ranks that differ are found."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.distributed.ranks import run
from tests.distributed.training import EVERY, batch, make, network, optimize, seen, sparse, step, train
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import rewire
from rewire.analysis.scale import rewiring_ddp
from rewire.distributed.group import Group
from rewire.distributed.handshake import Fingerprint, Peers


def build(method="ggr", store="masked", seed=5, model=None, **options):
    """Sparse first, then wrapped."""
    model = network() if model is None else model
    optimizer = optimize(model)
    rewirer = rewire.sparsify(
        model, optimizer, make(method) if isinstance(method, str) else method, store=store, seed=seed
    )
    return DistributedDataParallel(model, **options), optimizer, rewirer


def equal(one, other):
    assert all(torch.equal(a, b) for a, b in zip(one["masks"], other["masks"], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(one["weights"], other["weights"], strict=True))


def options_of_ddp():
    """Every way of reducing gives the same; gradients of absent weights are zero after the reduction."""
    results = []
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True}):
        for keep in (True, False):
            model, optimizer, rewirer = build(**options)
            for number in range(3 * EVERY):
                x, y = batch(number)
                F.cross_entropy(model(x), y).backward()
                if (number + 1) % EVERY:  # an ordinary step
                    assert all(not layer.parameter.grad[~layer.mask].any() for layer in rewirer.layers)
                optimizer.step()
                optimizer.zero_grad(set_to_none=keep)
            results.append(seen(rewirer))
            assert len(rewirer.history) == 3
    for other in results[1:]:
        equal(results[0], other)
    return results[0]


def accumulated():
    """Two micro-batches, the first without a reduction, are one batch."""
    model, optimizer, rewirer = build()
    for number in range(3 * EVERY):
        x, y = batch(number)
        with model.no_sync():
            (F.cross_entropy(model(x[::2]), y[::2]) / 2).backward()
        (F.cross_entropy(model(x[1::2]), y[1::2]) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    return seen(rewirer)


def clipped_with_mixed_precision():
    model = network(torch.float32)
    model, optimizer, rewirer = build(model=model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=10_000)  # too much: steps are skipped
    for number in range(20):
        x, y = batch(number, torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(8 * loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert 0 < rewirer.step < 20
    assert len(rewirer.history) == rewirer.step // EVERY
    return seen(rewirer)


def quiet_on_ordinary_steps():
    """Masks are not broadcast with the other buffers, wrapped before or after; only rewirings meet."""
    for wrapped_first in (True, False):
        model = nn.Sequential(nn.BatchNorm1d(12).double(), *network())
        model = DistributedDataParallel(model) if wrapped_first else model
        optimizer = optimize(model)
        rewirer = rewire.sparsify(model, optimizer, make("ggr"), seed=5)
        model = model if wrapped_first else DistributedDataParallel(model)
        for number in range(EVERY - 1):
            step(model, optimizer, number)
        assert rewirer.traffic.collectives == 0
        model(batch(0)[0])
        assert len(model.modules_buffers) == 3  # those of the norm
        step(model, optimizer, EVERY - 1)
        assert len(rewirer.history) == 1
        assert rewirer.traffic == rewiring_ddp(len(rewirer.layers), dist.get_world_size())


def in_a_parent():
    """The wrapper may sit around a module that contains the sparse one, among other buffers."""
    inner = network()
    optimizer = optimize(inner)
    rewirer = rewire.sparsify(inner, optimizer, make("rigl"), seed=5)
    parent = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(12, affine=False).double(), inner))
    for number in range(EVERY):
        step(parent, optimizer, number)
    assert rewirer.traffic.collectives == 1
    assert len(parent.modules_buffers) == 3  # those of the norm
    return seen(rewirer)


def all_of_it():
    quiet_on_ordinary_steps()
    return options_of_ddp(), accumulated(), clipped_with_mixed_precision(), in_a_parent()


def test_ways_of_using_ddp(tmp_path):
    first, second = run(all_of_it, 2, tmp_path / "ranks")
    for one, other in zip(first, second, strict=True):
        equal(one, other)
    alone = train("ggr", steps=3 * EVERY)[-1]
    for one in first[:2]:  # however it is reduced or accumulated, the topology of one process
        assert all(torch.equal(a, b) for a, b in zip(one["masks"], alone["masks"], strict=True))


def refusal(act):
    with pytest.raises((RuntimeError, ValueError)) as caught:
        act()
    return str(caught.value)


def first_step(model, optimizer, _rewirer):
    step(model, optimizer, 0)


def drifted():
    model, optimizer, rewirer = sparse("set", "wrapped first")
    layer = rewirer.layers[1]
    if dist.get_rank() == 1:  # a weight moves on one rank alone
        on, off = layer.mask.view(-1).nonzero()[0], (~layer.mask).view(-1).nonzero()[0]
        layer.mask.view(-1)[on], layer.mask.view(-1)[off] = False, True
    for number in range(EVERY):
        step(model, optimizer, number)


def differences():
    """What each rank is told; every call raises on both ranks, none waits for the other."""
    rank = dist.get_rank()
    other_density = [rewire.ggr(density=0.3, every=2, until=10), rewire.ggr(density=0.2, every=2, until=10)][rank]
    packed, left_out = network(), network()
    told = {
        "seed, wrapped last": refusal(lambda: first_step(*build(seed=rank))),
        "seed, wrapped first": refusal(
            lambda: rewire.sparsify(
                DistributedDataParallel(model := network()), optimize(model), make("ggr"), seed=rank
            )
        ),
        "method": refusal(lambda: first_step(*build(other_density))),
        "layers": refusal(
            lambda: rewire.sparsify(
                DistributedDataParallel(left_out), optimize(left_out), make("ggr"), exclude=["4", "6"][rank]
            )
        ),
        "drift": refusal(drifted),
        "packed, wrapped last": refusal(lambda: first_step(*build("set", store="packed"))),
        "packed, wrapped first": refusal(
            lambda: rewire.sparsify(DistributedDataParallel(packed), optimize(packed), make("ggr"), store="packed")
        ),
    }
    model = network()
    told["zero"] = refusal(
        lambda: rewire.sparsify(
            model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1), make("ggr")
        )
    )
    static, optimizer, rewirer = build("static", store="packed")  # nothing is ever resized: this is right
    step(static, optimizer, 0)
    return told, [layer.parameter.detach().clone() for layer in rewirer.layers]


def some_ranks():
    """What a group without rank 0 is told whose members have different seeds."""
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        return None
    peers = Peers(copies=[Group(group, torch.device("cpu"))])
    fingerprint = Fingerprint("ggr", True, dist.get_rank(), "masked", True, {}, 0)
    return refusal(lambda: peers.verify_agreement(fingerprint))


def test_ranks_are_named_by_their_number_in_the_run(tmp_path):
    for message in run(some_ranks, 3, tmp_path / "ranks")[1:]:
        assert "do not agree on the seed: rank 1 has 1, rank 2 has 2" in message


def test_ranks_that_differ_are_told_so_on_every_rank(tmp_path):
    (first, weights), (second, other) = run(differences, 2, tmp_path / "ranks")
    assert first == second
    assert all(torch.equal(a, b) for a, b in zip(weights, other, strict=True))
    assert "do not agree on the seed: rank 0 has 0, rank 1 has 1" in first["seed, wrapped last"]
    assert "do not agree on the seed" in first["seed, wrapped first"]
    assert "do not agree on the method" in first["method"]
    assert "Constant(value=0.2)" in first["method"]
    assert "do not agree on the layers" in first["layers"]
    assert f"after the rewiring at step {EVERY} the ranks do not have the same 4:" in first["drift"]
    assert "ZeroRedundancyOptimizer keeps its state" in first["zero"]
    for how in ("first", "last"):
        assert "store='packed' resizes weights, which DDP and FSDP cannot follow" in first[f"packed, wrapped {how}"]
