"""Constraints, and methods that read whole layers, on several ranks: the same topology as in one process, always."""

import dataclasses
import functools
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.conformance.test_structure import admitted
from tests.distributed.ranks import run
from tests.distributed.training import same, seen
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import rewire
from rewire.core.arrangement import WholeLayer, arrange
from rewire.parts import NM, BelowThreshold, Blocks, Channels, FanIn

CONSTRAINTS = {
    "2:4": NM(2, 4),
    "fan-in": FanIn(),
    "ablation": FanIn(0.6),
    "blocks": Blocks(2),
    "oblongs": Blocks(5, 2),
    "channels": Channels(),
}
LEFT_OUT = {"2:4": ["2", "8"], "oblongs": ["0", "2", "4", "8"]}  # layers whose shapes do not admit the constraint
CHAIN = {"chts": {"chain": ["0", "2", "4"], "initial": 0.5}}
# DSR's threshold doubles at a rewiring: from 0.001 it would not reach the mean magnitudes of tiles in two of them.
PARTS = {"dsr": {"drop": BelowThreshold(initial=0.2)}}
STEPS = 5

pytestmark = pytest.mark.filterwarnings("ignore:no signal passes")  # few blocks in a small network


def network():
    """Shards cut the blocks of most layers, and every output of the transposed convolution."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 16),
        nn.Unflatten(1, (4, 2, 2)),
        nn.ConvTranspose2d(4, 4, 3),
        nn.Tanh(),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(96, 10),
        nn.Linear(10, 4),
    ).double()


def linear():
    torch.manual_seed(0)
    layers = nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 12), nn.Tanh(), nn.Linear(12, 4)
    return nn.Sequential(*layers).double()


def sparse(name, constraint, how):
    """A model, its optimizer and its rewirer."""
    model = linear() if name == "chts" else network()
    if how == "fsdp":
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    settings = {"density": 0.3, "every": 1 if name == "deepr" else 2, "until": 100, "fraction": 0.4}
    settings |= CHAIN.get(name, {}) | ({} if constraint is None else {"constraint": CONSTRAINTS[constraint]})
    left_out = None if name == "chts" else LEFT_OUT.get(constraint)
    method = dataclasses.replace(rewire.METHODS[name](**settings), **PARTS.get(name, {}))
    rewirer = rewire.sparsify(model, optimizer, method, exclude=left_out)
    return DistributedDataParallel(model) if how == "ddp" else model, optimizer, rewirer


def step(model, optimizer, number):
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(24, 12, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (24,), generator=generator)
    if dist.is_initialized():
        mine = slice(dist.get_rank(), None, dist.get_world_size())
        x, y = x[mine], y[mine]
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def train(name, constraint, how="alone", steps=STEPS):
    """The state after every step; every one is checked."""
    model, optimizer, rewirer = sparse(name, constraint, how)
    states = [seen(rewirer)]
    for number in range(steps):
        step(model, optimizer, number)
        rewirer.check()
        states.append(seen(rewirer))
    return states


def cases(names):
    """Methods under each constraint that admits them, and methods that read whole layers without any."""
    under = [(name, one) for name in names for one in CONSTRAINTS if admitted(name, CONSTRAINTS[one], "masked")]
    return under + [(name, None) for name in names if name in ("chts", "srigl")]


def everything(names, how):
    return {case: train(*case, how) for case in cases(names)}


@functools.cache
def alone(case):
    """The states of one process, in which connections really changed, unless the method never changes any."""
    states = train(*case)
    changes = [
        any(not torch.equal(*masks) for masks in zip(before["masks"], after["masks"], strict=True))
        for before, after in pairwise(states)
    ]
    assert any(changes) == (case[0] != "static"), case
    assert bool(states[-1]["history"]) == (case[0] != "static"), case
    return states


@pytest.mark.parametrize(("size", "how"), [(2, "ddp"), (2, "fsdp"), (4, "fsdp")])
def test_ranks_have_the_topology_of_one_process(size, how, tmp_path):
    for rank in run(everything, size, tmp_path / "ranks", ("ggr", "srigl", "chts"), how):
        for case, states in rank.items():
            same(states, alone(case))


def test_every_method_under_every_constraint_in_shards(tmp_path):
    for rank in run(everything, 3, tmp_path / "ranks", tuple(rewire.METHODS), "fsdp"):
        assert len(rank) > 80
        for case, states in rank.items():
            same(states, alone(case))


def resumed(name, constraint):
    """Half of a training, and a second one that goes on from its state."""
    model, optimizer, rewirer = sparse(name, constraint, "fsdp")
    for number in range(3):
        step(model, optimizer, number)
    states = [one.state_dict() for one in (model, optimizer, rewirer)]
    again = sparse(name, constraint, "fsdp")
    for one, state in zip(again, states, strict=True):
        one.load_state_dict(state)
    for number in range(3, STEPS):
        step(again[0], again[1], number)
        again[2].check()
    return [seen(again[2])]


def resumes(cases):
    return {case: resumed(*case) for case in cases}


def test_resume_in_shards(tmp_path):
    settled = [*(("ggr", one) for one in CONSTRAINTS), ("chts", None)]
    for rank in run(resumes, 2, tmp_path / "ranks", settled):
        for case, states in rank.items():
            same(states, alone(case)[-1:])


def a_violation():
    """One rank gets a fifth weight into a group: every rank raises."""
    _, _, rewirer = sparse("ggr", "2:4", "fsdp")
    if dist.get_rank() == 1:
        rewirer.layers[0].local_mask[-1, :4] = True
        rewirer.layers[0].set_total_nnz(rewirer.layers[0].nnz)
    with pytest.raises(RuntimeError, match=r"0: 1 of 48 tiles violate NM\(n=2, m=4\): tile 45 has 4 weights"):
        rewirer.check()


def test_all_ranks_see_a_violation(tmp_path):
    run(a_violation, 2, tmp_path / "ranks")


def moved(constraint):
    """Which layers leave their shards for a rewiring, and on which rank they are then."""
    _, _, rewirer = sparse("ggr", constraint, "fsdp")
    arranged = arrange(rewirer.layers, rewirer.store.ranks, CONSTRAINTS[constraint], False, [], []).layers
    return {one.name: len(one.span) for one in arranged if isinstance(one, WholeLayer)}


def test_only_layers_whose_tiles_are_cut_leave_their_shards(tmp_path):
    first, second = run(moved, 2, tmp_path / "rows", "fan-in")
    assert (first, second) == ({"2": 0}, {"2": 144})  # an output of a transposed convolution is in every shard
    first, second = run(moved, 2, tmp_path / "blocks", "blocks")
    assert first == {"4": 216, "7": 0}  # halves of 6 and of 10 rows; those of 16, 4 and 4 rows are even
    assert second == {"4": 0, "7": 960}
