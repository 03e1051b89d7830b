"""An optimizer that no rewirer follows must not train sparse weights: refused there, and silent everywhere else."""

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from tests.loops.loops import batch, both_stores, sparse, train
from tests.loops.test_optimizers import SAM
from tests.networks import mlp
from torch.distributed.checkpoint import state_dict as checkpoint
from torch.optim.swa_utils import AveragedModel

import rewire

pytestmark = pytest.mark.usefixtures("one_thread")

REFUSED = r"this AdamW is about to step on the sparse weight of 0, .* rewirer.follow\(optimizer\)"
NEVER = rewire.static(density=0.3)


class Lookahead(torch.optim.Optimizer):
    """Keeps the optimizer that it wraps under a name that nobody knows, as timm's does."""

    def __init__(self, wrapped):
        super().__init__(wrapped.param_groups, {})
        self._base_optimizer, self.param_groups = wrapped, wrapped.param_groups

    def step(self, closure=None):
        return self._base_optimizer.step(closure)


class ByName(torch.optim.Optimizer):
    """Steps the optimizers of a dictionary."""

    def __init__(self, **optimizers):
        super().__init__([group for each in optimizers.values() for group in each.param_groups], {})
        self.optimizers = optimizers

    def step(self, closure=None):
        for optimizer in self.optimizers.values():
            optimizer.step()


class Hidden(torch.optim.Optimizer):
    """Makes the optimizer that moves the weights anew in each of its steps."""

    def step(self, closure=None):
        torch.optim.SGD(self.param_groups[0]["params"], lr=0.1).step(closure)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@both_stores
@pytest.mark.parametrize("begin", [1, 2, 4])
def test_another_optimizer_is_refused_until_it_is_followed(store, begin):
    model, optimizer, rewirer = sparse(store)
    train(model, optimizer, begin)
    optimizer = adamw(model)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=REFUSED):
            train(model, optimizer, 1, begin=begin)
        optimizer.zero_grad()
    assert rewirer.step == begin
    rewirer.follow(optimizer)
    train(model, optimizer, 7 - begin, begin=begin)
    assert rewirer.step == 7
    assert [record.step for record in rewirer.history] == [3, 6]
    rewirer.check()


@both_stores
def test_it_is_refused_if_nobody_has_kept_the_rewirer(store):
    model, optimizer = sparse(store)[:2]
    train(model, optimizer, 2)
    del optimizer
    gc.collect()
    with pytest.raises(RuntimeError, match=REFUSED):
        train(model, adamw(model), 1)


def test_one_with_a_closure_or_a_group_that_is_added_later_is_refused():
    model = sparse("masked")[0]
    lbfgs = torch.optim.LBFGS(model.parameters())
    model.requires_grad_(False)
    lbfgs.step(lambda: 0.0)  # no closure gives frozen weights a gradient
    model.requires_grad_(True)
    with pytest.raises(RuntimeError, match="this LBFGS is about to step"):
        lbfgs.step(lambda: 0.0)
    optimizer = torch.optim.AdamW([model[0].bias], lr=0.01)
    train(model, optimizer, 1)
    optimizer.add_param_group({"params": [model[0].weight]})
    with pytest.raises(RuntimeError, match=REFUSED):
        train(model, optimizer, 1)


@both_stores
def test_dense_parameters_of_the_same_model_may_have_another_optimizer(store):
    model, optimizer, rewirer = sparse(store)
    other = torch.optim.AdamW([p for p in model.parameters() if p.ndim == 1 and p.numel() <= 16], lr=0.01)
    train(model, optimizer, 4, after=lambda _step: other.step())
    assert rewirer.step == 4


@both_stores
def test_copies_averages_removed_rewirers_and_other_models_are_left_alone(store):
    model, optimizer, rewirer = sparse(store)
    average = AveragedModel(model)
    train(model, optimizer, 2, after=lambda _step: average.update_parameters(model))
    for other in (copy.deepcopy(model), average.module, mlp(dtype=torch.float64)):
        train(other, adamw(other), 2)
    second = sparse(store)
    train(second[0], second[1], 4)
    train(model, optimizer, 4)
    assert (rewirer.step, second[2].step) == (6, 4)
    rewirer.remove()
    train(model, adamw(model), 2)
    again = adamw(model)
    other_rewirer = rewire.sparsify(model, again, NEVER, store=store)
    train(model, again, 2)
    assert other_rewirer.step == 2
    with pytest.raises(RuntimeError, match="this SGD is about to step"):  # of the rewirer that was removed
        train(model, optimizer, 1)


@both_stores
def test_one_optimizer_over_two_models_must_be_followed_by_both_rewirers(store):
    first, second = mlp(dtype=torch.float64), mlp(seed=1, dtype=torch.float64)
    both = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=0.01)
    one = rewire.sparsify(first, both, NEVER, store=store)
    other = rewire.sparsify(second, torch.optim.SGD(second.parameters(), lr=0.1), NEVER, store=store)

    def step():
        x, y = batch(0)
        F.cross_entropy(first(x) + second(x), y).backward()
        both.step()

    with pytest.raises(RuntimeError, match=REFUSED):
        step()
    other.follow(both)
    step()
    assert (one.step, other.step) == (1, 1)


@both_stores
@pytest.mark.parametrize("given", ["inside", "wrapper"])
def test_wrappers_of_any_name(store, given):
    model = mlp(dtype=torch.float64)
    inside = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = Lookahead(inside)
    rewirer = rewire.sparsify(model, inside if given == "inside" else wrapper, NEVER, store=store)
    train(model, wrapper, 3)
    assert rewirer.step == 3


@both_stores
def test_a_wrapper_of_several(store):
    model = mlp(dtype=torch.float64)
    first, rest = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[1:]))
    rewirer = rewire.sparsify(model, [first, rest], NEVER, store=store)
    train(model, ByName(first=first, rest=rest), 3)
    assert rewirer.step == 3


def test_what_steps_inside_of_a_followed_step():
    model = mlp(dtype=torch.float64)
    outer = Hidden(model.parameters(), {})
    rewirer = rewire.sparsify(model, outer, NEVER)
    train(model, outer, 3)
    assert rewirer.step == 3
    with pytest.raises(RuntimeError, match="this SGD is about to step"):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)


@both_stores
def test_sam_and_the_grad_scaler(store):
    model = mlp()
    optimizer = SAM(model.parameters(), lr=0.1, momentum=0.9)
    rewirer = rewire.sparsify(model, optimizer, NEVER, store=store)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(3):
        x, y = batch(step, dtype=torch.float32)
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer.base_optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert rewirer.step == 3


@both_stores
def test_steps_that_move_nothing(store):
    """A fresh optimizer is stepped with gradients of zero to see its state, before the rewirer follows it."""
    model, _, rewirer = sparse(store)
    checkpoint.set_optimizer_state_dict(model, adamw(model), checkpoint.get_optimizer_state_dict(model, adamw(model)))
    fresh = adamw(model)
    fresh.step()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    fresh.step()
    with pytest.raises(RuntimeError, match=REFUSED):
        train(model, fresh, 1)
    rewirer.follow(fresh)


def test_optimizers_that_were_looked_at_are_not_kept_alive():
    sparse("masked")
    other = mlp()
    optimizer = adamw(other)
    optimizer.step()
    references = [weakref.ref(other), weakref.ref(optimizer)]
    del other, optimizer
    gc.collect()
    assert [reference() for reference in references] == [None, None]
