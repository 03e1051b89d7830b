"""Checkpoints that any number of ranks can load, and that survive damage, a full disk and a crash while saving."""

import json
import resource
import signal

import pytest
import torch
import torch.distributed as dist
from tests.distributed.ranks import run
from tests.distributed.training import make, network, optimize, same, seen, sparse, step
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import rewire
from rewire.distributed import load_latest, save

METHODS = ("ggr", "snfs", "dsr")  # gradients only; averages that are sharded too; a method with a memory
BEFORE, AFTER = 4, 4


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.02)


def first_half(folder, how):
    for name in METHODS:
        model, optimizer, rewirer = sparse(name, how, optimizer=adam)
        for number in range(BEFORE):
            step(model, optimizer, number)
        save(folder / name, BEFORE, model=model, optimizer=optimizer, rewirer=rewirer, extra={"best": 0.1})


def second_half(folder, how):
    states = {}
    for name in METHODS:
        model, optimizer, rewirer = sparse(name, how, optimizer=adam)
        loaded = load_latest(folder / name, model=model, optimizer=optimizer, rewirer=rewirer)
        assert (loaded.step, loaded.extra, rewirer.step) == (BEFORE, {"best": 0.1}, BEFORE)
        states[name] = [seen(rewirer)]
        for number in range(BEFORE, BEFORE + AFTER):
            step(model, optimizer, number)
            states[name].append(seen(rewirer))
    return states


def uninterrupted(how="alone"):
    states = {}
    for name in METHODS:
        model, optimizer, rewirer = sparse(name, how, optimizer=adam)
        states[name] = []
        for number in range(BEFORE + AFTER):
            step(model, optimizer, number)
            states[name].append(seen(rewirer))
        states[name] = states[name][BEFORE - 1 :]
    return states


def test_saved_on_four_ranks_and_loaded_on_two_on_one_and_by_ddp(tmp_path):
    run(first_half, 4, tmp_path / "save", tmp_path / "run", "fsdp")
    expected = uninterrupted()
    loaded = [
        *run(second_half, 2, tmp_path / "two", tmp_path / "run", "fsdp"),
        *run(second_half, 2, tmp_path / "ddp", tmp_path / "run", "wrapped last"),
        second_half(tmp_path / "run", "alone"),
    ]
    for states in loaded:
        for name in METHODS:
            same(states[name], expected[name])


def interrupted_and_not(folder):
    first_half(folder, "fsdp")
    return second_half(folder, "fsdp"), uninterrupted("fsdp")


def test_a_run_that_is_stopped_and_resumed_is_bit_identical(tmp_path):
    for resumed, whole in run(interrupted_and_not, 2, tmp_path / "ranks", tmp_path / "run"):
        for name in METHODS:
            for a, b in zip(resumed[name], whole[name], strict=True):
                assert all(torch.equal(x, y) for x, y in zip(a["weights"], b["weights"], strict=True))
                assert all(torch.equal(x, y) for x, y in zip(a["masks"], b["masks"], strict=True))


def train_and_save(folder, steps):
    model, optimizer, rewirer = sparse("ggr")
    for number in range(steps):
        step(model, optimizer, number)
        save(folder, number + 1, model=model, optimizer=optimizer, rewirer=rewirer)
    return model, optimizer, rewirer


def load(folder):
    model, optimizer, rewirer = sparse("ggr")
    return load_latest(folder, model=model, optimizer=optimizer, rewirer=rewirer), rewirer


@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "unlist"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(tmp_path, harm):
    train_and_save(tmp_path, 3)
    shard = next((tmp_path / "step-000000003").glob("__0_*"))
    whole = shard.read_bytes()
    if harm == "flip":
        shard.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
    elif harm == "cut":
        shard.write_bytes(whole[: len(whole) // 2])
    elif harm == "remove":
        shard.unlink()
    else:
        (shard.parent / "files-0.json").write_text("{")
    with pytest.warns(UserWarning, match="step-000000003 is damaged .*: the one before it is used"):
        loaded, rewirer = load(tmp_path)
    assert (loaded.step, rewirer.step) == (2, 2)
    next((tmp_path / "step-000000002").glob("__0_*")).unlink()
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(RuntimeError, match="no checkpoint in .* is whole"):
        load(tmp_path)


def test_only_the_newest_are_kept_and_an_unfinished_one_is_never_loaded(tmp_path):
    assert load(tmp_path)[0] is None
    train_and_save(tmp_path, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000003", "step-000000004"]
    (tmp_path / "step-000000004").rename(tmp_path / "partial-000000004")  # as a crash before the end leaves it
    assert load(tmp_path)[0].step == 3
    with pytest.raises(ValueError, match="keep must be at least 1, not 0"):
        save(tmp_path, 1, model=None, optimizer=None, rewirer=None, keep=0)


def full_disk_on_one_rank(folder):
    model, optimizer, rewirer = sparse("ggr", "fsdp")
    step(model, optimizer, 0)
    save(folder, 1, model=model, optimizer=optimizer, rewirer=rewirer)
    step(model, optimizer, 1)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:  # no file may grow beyond 100 bytes: writing fails as it does on a full disk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    with pytest.raises(
        RuntimeError, match="could not write the checkpoint of step 2 .*File too large.*what was saved before is intact"
    ):
        save(folder, 2, model=model, optimizer=optimizer, rewirer=rewirer)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    model, optimizer, rewirer = sparse("ggr", "fsdp")
    return load_latest(folder, model=model, optimizer=optimizer, rewirer=rewirer).step


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path):
    assert run(full_disk_on_one_rank, 2, tmp_path / "ranks", tmp_path / "run") == [1, 1]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["step-000000001"]


def test_packed_models_are_refused(tmp_path):
    model = network()
    optimizer = optimize(model)
    rewirer = rewire.sparsify(model, optimizer, make("ggr"), store="packed")
    with pytest.raises(ValueError, match="use torch.save with the three state_dicts"):
        save(tmp_path, 1, model=model, optimizer=optimizer, rewirer=rewirer)
    assert not list(tmp_path.iterdir())


def test_looking_at_the_state_of_a_fresh_optimizer_is_no_step():
    """torch makes one, with rates and gradients of zero, to see which state there will be."""
    model, optimizer, rewirer = sparse("ggr", every=1)
    get_optimizer_state_dict(model, optimizer)
    assert (rewirer.step, rewirer.history) == (0, [])
    step(model, optimizer, 0)
    assert (rewirer.step, len(rewirer.history)) == (1, 1)


def test_a_step_of_a_warm_up_that_begins_at_zero_is_one():
    model, optimizer, rewirer = sparse("ggr", every=1)
    optimizer.param_groups[0]["lr"] = 0.0
    step(model, optimizer, 0)
    assert (rewirer.step, len(rewirer.history)) == (1, 1)


def test_the_plain_part_of_a_checkpoint_is_readable(tmp_path):
    train_and_save(tmp_path, 2)
    run_ = json.loads((tmp_path / "step-000000002" / "run.json").read_text())
    assert run_["rewirer"]["history"]["step"] == [2]
    assert "ErdosRenyiKernel" in run_["rewirer"]["method"]
