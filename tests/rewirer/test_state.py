"""Save, load in a new process into freshly built objects, and go on: bit for bit the uninterrupted run."""

import subprocess
import sys

import pytest
import torch
from tests.networks import OPTIMIZERS, mlp, network_for, train

import rewire

SHAPE = (3, 6, 6)
STOP, END = 7, 16  # between two rewirings at 5 and 10


def build(name, optimizer="momentum"):
    model, _ = network_for(name)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    method = rewire.METHODS[name](density=0.3, every=5, until=15)
    return model, optimizer, rewire.sparsify(model, optimizer, method, seed=3)


def snapshot(model, optimizer, rewirer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rewirer": rewirer.state_dict()}


def resume(name, path, out):
    """What the new process does."""
    torch.manual_seed(99)  # nothing may depend on the global generator
    model, optimizer, rewirer = build(name)
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    rewirer.load_state_dict(saved["rewirer"])
    train(model, optimizer, END - STOP, begin=STOP, shape=network_for(name)[1])
    torch.save(snapshot(model, optimizer, rewirer), out)


def flatten(tree, path=""):
    if isinstance(tree, dict):
        return {k: v for key, value in tree.items() for k, v in flatten(value, f"{path}/{key}").items()}
    if isinstance(tree, list) and tree and isinstance(tree[0], dict):
        return flatten(dict(enumerate(tree)), path)
    return {path: tree}


def assert_identical(a, b):
    a, b = flatten(a), flatten(b)
    assert a.keys() == b.keys()
    for key, value in a.items():
        equal = torch.equal(value, b[key]) if isinstance(value, torch.Tensor) else value == b[key]
        assert equal, key


def test_resume_in_a_new_process_is_bit_identical(tmp_path):
    names = list(rewire.METHODS)
    expected = {}
    for name in names:
        model, optimizer, rewirer = build(name)
        train(model, optimizer, STOP, shape=network_for(name)[1])
        torch.save(snapshot(model, optimizer, rewirer), tmp_path / f"{name}.pt")
        train(model, optimizer, END - STOP, begin=STOP, shape=network_for(name)[1])
        expected[name] = snapshot(model, optimizer, rewirer)
    each = f"resume(name, f'{tmp_path}/{{name}}.pt', f'{tmp_path}/{{name}}.out')"
    code = f"from tests.rewirer.test_state import resume\nfor name in {names}: {each}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    for name in names:
        assert_identical(torch.load(tmp_path / f"{name}.out", weights_only=True), expected[name])
        assert bool(expected[name]["rewirer"]["history"]["step"]) == (name != "static")


@pytest.mark.parametrize("stop", [1, 4, 5, 6, 10])
def test_resume_at_any_step(stop):
    whole = build("ggr", "adam")
    train(whole[0], whole[1], 16, shape=SHAPE)
    first = build("ggr", "adam")
    train(first[0], first[1], stop, shape=SHAPE)
    second = build("ggr", "adam")
    for target, source in zip(second, first, strict=True):
        target.load_state_dict(source.state_dict())
    train(second[0], second[1], 16 - stop, begin=stop, shape=SHAPE)
    assert_identical(snapshot(*second), snapshot(*whole))


def test_a_rewiring_that_was_put_off_is_remembered():
    rewirer = build("rigl")[2]
    rewirer.due = 5
    other = build("rigl")[2]
    other.load_state_dict(rewirer.state_dict())
    assert other.due == 5


def test_another_method_is_refused():
    state = build("rigl")[2].state_dict()
    with pytest.raises(ValueError, match=r"checkpoint's method differs:(.|\n)*Strongest(.|\n)*AtRandom"):
        build("set")[2].load_state_dict(state)


def test_another_model_is_refused_with_the_names_and_shapes():
    model = mlp()
    method = rewire.METHODS["rigl"](density=0.3, every=5, until=15)
    rewirer = rewire.sparsify(model, OPTIMIZERS["sgd"](model.parameters()), method)
    state = build("rigl")[2].state_dict()
    with pytest.raises(
        ValueError, match=r"of another model:\n  0: checkpoint \(8, 3, 3, 3\), here \(16, 12\)\n  2: chec"
    ):
        rewirer.load_state_dict(state)
    assert rewirer.step == 0


def test_another_store_or_format_or_something_else_is_refused():
    rewirer = build("rigl")[2]
    with pytest.raises(ValueError, match="checkpoint's store differs"):
        rewirer.load_state_dict(rewirer.state_dict() | {"store": "elsewhere"})
    with pytest.raises(ValueError, match="checkpoint's format differs"):
        rewirer.load_state_dict(rewirer.state_dict() | {"format": 99})
    snfs = build("snfs")[2]
    with pytest.raises(ValueError, match="no momentum averages for 0, 3, 6"):
        snfs.load_state_dict(snfs.state_dict() | {"averages": {}})
    with pytest.raises(ValueError, match="not a rewirer's state_dict: it has no averages, due, format, history"):
        rewirer.load_state_dict({"state": {}, "param_groups": []})


def test_forgetting_the_models_state_is_noticed_at_the_next_step():
    model, optimizer, rewirer = build("rigl")
    train(model, optimizer, 6, shape=SHAPE)
    fresh, fresh_optimizer, fresh_rewirer = build("rigl")
    fresh_rewirer.load_state_dict(rewirer.state_dict())
    with pytest.raises(RuntimeError, match="the masks of 0, 3, 6 are not those it was saved with: load the model's"):
        train(fresh, fresh_optimizer, 1, shape=SHAPE)
