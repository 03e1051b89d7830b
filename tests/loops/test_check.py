"""``rewirer.check()``: silent while all is right, and one error that names every fault."""

import copy

import pytest
import torch
from tests.loops.loops import both_stores, sparse, train
from tests.networks import OPTIMIZERS, mlp
from torch import nn
from torch.optim.swa_utils import AveragedModel

import rewire

pytestmark = pytest.mark.usefixtures("one_thread")


@both_stores
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_nothing_is_found_in_any_training(store, optimizer):
    model = mlp(dtype=torch.float64)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    rewirer = rewire.sparsify(model, optimizer, rewire.ggr(density=0.3, every=3, until=100), store=store)
    rewirer.check()
    train(model, optimizer, 8, after=lambda _: rewirer.check())
    state = copy.deepcopy([one.state_dict() for one in (model, optimizer, rewirer)])
    for one, saved in zip((model, optimizer, rewirer), state, strict=True):
        one.load_state_dict(saved)
    rewirer.check()
    train(model, optimizer, 2, begin=8, after=lambda _: rewirer.check())


def trained(store, **options):
    model, optimizer, rewirer = sparse(store, "ggr", **options)
    train(model, optimizer, 4)
    return model, optimizer, rewirer


def faults(rewirer):
    with pytest.raises(RuntimeError) as raised:
        rewirer.check()
    first, *rest = str(raised.value).splitlines()
    assert first == "rewirer.check() found:"
    return [line.strip() for line in rest]


def test_everything_that_is_wrong_with_a_masked_model():
    model, optimizer, rewirer = trained("masked")
    off = [(~layer.mask).nonzero()[0].tolist() for layer in rewirer.layers]
    model[0].weight.data[tuple(off[0])] = 1.0
    optimizer.state[model[2].weight]["momentum_buffer"][tuple(off[1])] = 1.0
    model[2].weight.grad = torch.ones_like(model[2].weight)
    rewirer.store.keep_inactive_grads = False
    model[4].weight_mask[tuple(off[2])] = True
    assert faults(rewirer) == [
        "0: 1 weights are not zero where no weight exists",
        f"2: {int((~rewirer.layers[1].mask).sum())} gradients are not zero where no weight exists",
        "2: 1 entries of the optimizer state momentum_buffer are not zero where no weight exists",
        f"the layers have {rewirer.nnz} weights together, the budget is {rewirer.nnz - 1}",
    ]


def test_everything_that_is_wrong_with_a_packed_model():
    model, optimizer, rewirer = trained("packed")
    model[0].weight_positions[[0, 1]] = model[0].weight_positions[[1, 0]]
    optimizer.state[rewirer.layers[1].parameter]["momentum_buffer"] = torch.zeros(3)
    model[4].weight_positions[-1] = 64
    assert faults(rewirer) == [
        "0: its positions are not sorted, or one of them is there twice",
        f"2: its optimizer state momentum_buffer has shape (3,), its weight ({rewirer.layers[1].nnz},)",
        f"4: its positions go from {int(model[4].weight_positions[0])} to 64, outside of range(0, 64)",
    ]


@both_stores
def test_a_parameter_that_is_another_one_and_an_average_that_strayed(store):
    model, optimizer, rewirer = trained(store)
    average = AveragedModel(model)
    topology = "weight_mask" if store == "masked" else "weight_positions"
    buffer = getattr(average.module[0], topology).view(-1)
    buffer[-1] = not buffer[-1] if store == "masked" else buffer[-1] + 1
    model[2]._parameters["weight"] = nn.Parameter(torch.zeros(3))
    optimizer.param_groups[0]["params"] = optimizer.param_groups[0]["params"][:-2]
    assert faults(rewirer) == [
        "0: its average has another topology",
        "2: the module has another parameter than the one that is rewired",
        "4: no optimizer holds its parameter",
    ]
