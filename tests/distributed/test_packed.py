"""The packed store on several ranks: DDP averages the other parameters, the store its own weights."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.distributed.ranks import run
from tests.distributed.test_ddp import refusal
from tests.distributed.training import EVERY, batch, make, network, optimize, step
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rewire
from rewire.analysis.scale import rewiring_packed, step_packed

STEPS = 3 * EVERY
METHODS = {
    "ggr": {},
    "rigl": {},
    "set": {},
    "gse": {},
    "mest": {},
    "mest_soft": {"until": 6},
    "acdc": {"until": 6},  # sparse, dense and sparse again
    "srigl": {},
    "channels": {"constraint": rewire.parts.Channels(), "fraction": 0.7},
    "a sample": {"sample": 0.5},
    "scaled": {"parts": {"allocate": rewire.parts.GlobalTop(scale="layer")}},
}


def packed(label="ggr", seed=5, model=None, wrap=True, **options):
    model = network() if model is None else model
    settings = METHODS.get(label, {})
    name = label if label in rewire.METHODS else "ggr"
    optimizer = optimize(model)
    group = dist.group.WORLD if dist.is_initialized() else None
    rewirer = rewire.sparsify(
        model, optimizer, make(name, **settings), store="packed", seed=seed, process_group=group, **options
    )
    return DistributedDataParallel(model) if wrap and group is not None else model, optimizer, rewirer


def seen(rewirer):
    return {
        "topology": [layer.active().tolist() for layer in rewirer.layers],
        "weights": torch.cat([layer.read(rewire.core.Signal.WEIGHT).flatten() for layer in rewirer.layers]),
        "history": list(rewirer.history),
    }


def trained(label, **options):
    model, optimizer, rewirer = packed(label, **options)
    for number in range(STEPS):
        step(model, optimizer, number)
    rewirer.check()
    return seen(rewirer)


def every_method():
    return {label: trained(label) for label in METHODS} | {"part masked": trained("ggr", keep_masked="4")}


def same(one, other, exact):
    assert one["topology"] == other["topology"]
    assert one["history"] == other["history"]
    assert len(one["history"]) == 3
    if exact:
        assert torch.equal(one["weights"], other["weights"])
    torch.testing.assert_close(one["weights"], other["weights"], rtol=1e-9, atol=1e-11)


def test_the_topology_of_one_process_with_the_whole_batch(tmp_path):
    first, second = run(every_method, 2, tmp_path / "ranks")
    alone = every_method()
    for label in alone:
        same(first[label], second[label], exact=True)
        same(first[label], alone[label], exact=False)


def accumulated():
    """Micro-batches under ``no_sync``, and micro-batches that are all averaged."""
    results = []
    for quiet in (True, False):
        model, optimizer, rewirer = packed()
        for number in range(STEPS):
            x, y = batch(number)
            with model.no_sync() if quiet else torch.enable_grad():
                (F.cross_entropy(model(x[::2]), y[::2]) / 2).backward()
            sent = rewirer.store.gradient_traffic.collectives
            assert (sent == number) if quiet else (sent == 2 * number + 1)  # one bucket for all layers
            (F.cross_entropy(model(x[1::2]), y[1::2]) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(seen(rewirer))
    return results


def clipped():
    """The norm is that of the averaged gradient, the same on all ranks."""
    model, optimizer, rewirer = packed()
    norms = []
    for number in range(STEPS):
        x, y = batch(number)
        F.cross_entropy(model(x), y).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
        optimizer.step()
        optimizer.zero_grad()
    return norms, seen(rewirer)


def resumed():
    """Saved after a rewiring, loaded into a new model, and trained on: as if it had not been interrupted."""
    model, optimizer, rewirer = packed()
    for number in range(EVERY + 1):
        step(model, optimizer, number)
    saved = copy.deepcopy([model.module.state_dict(), optimizer.state_dict(), rewirer.state_dict()])
    other = packed()
    for one, state in zip((other[0].module, *other[1:]), saved, strict=True):
        one.load_state_dict(state)
    for number in range(EVERY + 1, STEPS):
        step(model, optimizer, number)
        step(other[0], other[1], number)
    return seen(rewirer), seen(other[2])


def sent():
    """Ordinary steps send the gradients of the weights that exist, and rewirings what the formula says."""
    model, optimizer, rewirer = packed()
    sizes = [layer.nnz for layer in rewirer.layers]
    for number in range(EVERY - 1):
        step(model, optimizer, number)
    assert rewirer.traffic.collectives == 0
    ranks = dist.get_world_size()
    assert rewirer.store.gradient_traffic == step_packed(sizes, ranks, torch.float64) * (EVERY - 1)
    step(model, optimizer, EVERY - 1)
    assert rewirer.traffic == rewiring_packed([layer.shape for layer in rewirer.layers], ranks, torch.float64)
    assert [name for name, _ in model.module.named_parameters() if not name.endswith("weight")] == [
        name for name, parameter in model.module.named_parameters() if id(parameter) in reduced(model)
    ]


def reduced(model):
    return {id(parameter) for parameter in model._module_parameters}


def unused():
    """A layer that some ranks do not use, or none: no rank waits for another."""

    class Skips(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.never = (nn.Linear(12, 12).double() for _ in range(3))
            self.head = nn.Linear(12, 4).double()

        def forward(self, x):
            x = self.first(x)
            return self.head(self.second(x) if dist.get_rank() == 0 else x)

    torch.manual_seed(0)
    model = Skips()
    optimizer = optimize(model)
    rewirer = rewire.sparsify(model, optimizer, make("ggr"), store="packed", process_group=dist.group.WORLD)
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    for number in range(STEPS):
        x, y = batch(number)
        F.cross_entropy(wrapped(x), y).backward()
        assert model.second.weight_values.grad is not None
        assert model.never.weight_values.grad is None
        optimizer.step()
        optimizer.zero_grad()
    return seen(rewirer)


class Conditional(nn.Module):
    """DDP's parameters have gradients on all ranks, and packed weights on some, after and before those of DDP."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(1, 2, 12, dtype=torch.float64))
        self.first, self.second = (nn.Linear(12, 12, bias=False).double() for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(12, dtype=torch.float64))

    def forward(self, x, layers):
        x = x * self.scale
        for layer in (self.first, self.second)[:layers]:
            x = layer(x)
        return x + self.bias


def conditional(layers):
    """Trained on both ranks, of which the second one uses fewer layers; or on one process with both batches."""
    torch.manual_seed(0)
    model = Conditional()
    wrapped, optimizer, rewirer = packed(model=model)
    several = dist.is_initialized()
    for number in range(STEPS):
        for rank, used in enumerate((2, layers)):
            if several and rank != dist.get_rank():
                continue
            x = torch.randn(8, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2 * number + rank))
            loss = wrapped(x, used).square().mean()
            (loss if several else loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    return seen(rewirer)


def conditional_layers():
    return [conditional(layers) for layers in (2, 1, 0)]


def test_a_rank_that_uses_few_or_none_of_the_packed_layers(tmp_path):
    """The averages of the store and those of DDP start in different orders on the ranks, or not at all on one."""
    first, second = run(conditional_layers, 2, tmp_path / "ranks")
    for one, other, alone in zip(first, second, conditional_layers(), strict=True):
        same(one, other, exact=True)
        same(one, alone, exact=False)


def ways():
    torch.manual_seed(dist.get_rank())  # DDP would give all ranks the weights of the first one, and so does sparsify
    model = nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 4)).double()
    _model, _optimizer, rewirer = packed(model=model)
    return accumulated(), clipped(), resumed(), unused(), sent(), seen(rewirer)


def test_ways_of_training(tmp_path):
    first, second = run(ways, 2, tmp_path / "ranks")
    alone = trained("ggr")
    for one in first[0]:
        same(one, alone, exact=False)
    assert first[1][0] == second[1][0]
    same(first[1][1], second[1][1], exact=True)
    for rank in (first, second):
        same(*rank[2], exact=True)
    same(first[3], second[3], exact=True)
    assert torch.equal(first[5]["weights"], second[5]["weights"])
    assert first[5]["topology"] == second[5]["topology"]


def differences():
    rank, group = dist.get_rank(), dist.group.WORLD

    def wrapped_first():
        model = network()
        wrapper = DistributedDataParallel(model)
        rewire.sparsify(wrapper, optimize(model), make("ggr"), store="packed", process_group=group)

    def in_a_parent():
        inner = network()
        optimizer = optimize(inner)
        rewire.sparsify(inner, optimizer, make("ggr"), store="packed", process_group=group)
        step(DistributedDataParallel(nn.Sequential(inner)), optimizer, 0)

    def drifted():
        model, optimizer, rewirer = packed("set")
        module = rewirer.layers[1].module
        if rank == 1:
            free = sorted(set(range(module.geometry.numel)) - set(module.weight_positions.tolist()))
            module.weight_positions[-1] = free[-1] if free[-1] > int(module.weight_positions[-2]) else free[0]
            module.weight_positions = module.weight_positions.sort().values
        for number in range(EVERY):
            step(model, optimizer, number)

    return {
        "seed": refusal(lambda: packed(seed=rank)),
        "wrapped first": refusal(wrapped_first),
        "parent": refusal(in_a_parent),
        "drift": refusal(drifted),
    }


def test_what_is_refused_on_every_rank(tmp_path):
    first, second = run(differences, 2, tmp_path / "ranks")
    assert first == second
    assert "do not agree on the seed: rank 0 has 0, rank 1 has 1" in first["seed"]
    assert "wrap it in DDP after sparsify" in first["wrapped first"]
    assert "Wrap that module itself" in first["parent"]
    assert "the ranks do not have the same 4:" in first["drift"]


def test_a_group_needs_torch_distributed():
    model = network()
    with pytest.raises(ValueError, match="init_process_group first"):
        rewire.sparsify(model, optimize(model), make("ggr"), store="packed", process_group=object())
