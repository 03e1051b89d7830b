"""Gradients that are written where no weight exists: through ``.data``, or by step hooks after that of the Rewirer."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from tests.loops.loops import assert_zero_off_mask, batch
from tests.networks import OPTIMIZERS
from torch import nn

import rewire


def deep(optimizer="momentum"):
    """More layers than are swept at each step."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(6) for layer in (nn.Tanh(), nn.Linear(16, 16))]
    model = nn.Sequential(nn.Linear(12, 16), *hidden).double()
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    return model, optimizer, rewire.sparsify(model, optimizer, rewire.rigl(density=0.3, every=50, until=99))


def add_through_data(parameter):
    parameter.grad.data.add_(0.1 * torch.randn_like(parameter))


def replace_data(parameter):
    parameter.grad.data = torch.randn_like(parameter)


def add(parameter):
    parameter.grad.add_(0.1 * torch.randn_like(parameter))


def replace(parameter):
    parameter.grad = torch.randn_like(parameter)


def write_before_steps(model, optimizer, steps, write):
    for step in steps:
        x, y = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if step:
            for parameter in model.parameters():
                write(parameter)
        optimizer.step()
        assert_zero_off_mask(model)


@pytest.mark.parametrize("write", [add_through_data, replace_data, add, replace])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_noise_on_gradients_moves_no_inactive_weight(write, optimizer):
    model, optimizer, rewirer = deep(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_before_steps(model, optimizer, range(6), write)
    rewirer.check()


@pytest.mark.parametrize("write", [add_through_data, replace_data, add, replace])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("since", [0, 3])
def test_noise_of_a_late_step_hook_is_undone_at_that_step_and_blamed(write, optimizer, since):
    model, optimizer, rewirer = deep(optimizer)
    steps = iter(range(100))

    def noise(*_):
        if next(steps) >= since:
            for parameter in model.parameters():
                write(parameter)

    optimizer.register_step_pre_hook(noise)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(8):
            write_before_steps(model, optimizer, [step], lambda _: None)
            assert len(caught) == (step >= since > 0)
    assert all("pre-hook that was registered after sparsify" in str(warning.message) for warning in caught)
    optimizer.zero_grad()
    rewirer.check()


def test_a_write_to_a_row_by_a_late_step_hook():
    model, optimizer, rewirer = deep()
    optimizer.register_step_pre_hook(lambda *_: [p.grad[-1].add_(0.1) for p in model.parameters()] and None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_before_steps(model, optimizer, range(6), lambda _: None)
    optimizer.zero_grad()
    rewirer.check()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_any_value_is_cleared_and_active_bits_stay(value, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1100, 1000)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.3))
    (layer,) = rewirer.layers
    layer.parameter.grad = torch.randn_like(layer.parameter)
    before = layer.parameter.grad.clone()
    layer.parameter.grad[~layer.mask] = value
    layer.clear_inactive_grad()
    assert torch.equal(layer.parameter.grad, torch.where(layer.mask, before, 0.0))
