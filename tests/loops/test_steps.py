"""Steps that are not plain calls of ``optimizer.step``: inside of another one, interrupted, compiled."""

import pytest
import torch
import torch.nn.functional as F
from tests.loops.loops import assert_same_topology, assert_zero_off_mask, batch, both_stores, dense, train
from tests.networks import mlp

import rewire

pytestmark = pytest.mark.usefixtures("one_thread")

RIGL = rewire.rigl(density=0.3, every=3, until=1000, fraction=0.4)


class Clipped(torch.optim.SGD):
    """As detectron2 clips: in a subclass whose ``step`` ends in that of the class below."""

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 100.0)
        return super().step(closure)


class Failing(Clipped):
    """Its next step raises after the hooks of both classes have run."""

    fails = False

    def step(self, closure=None):
        if self.fails:
            self.fails = False
            super().step(_fail)
        return super().step(closure)


def _fail():
    raise ArithmeticError("in the closure")


def sparse(store, kind=torch.optim.SGD, model=None):
    model = mlp(dtype=torch.float64) if model is None else model
    kind([torch.zeros(1, requires_grad=True)], lr=0.1)
    optimizer = kind(model.parameters(), lr=0.1)
    return model, optimizer, rewire.sparsify(model, optimizer, RIGL, store=store)


def assert_equal_runs(one, other):
    assert_same_topology(one[0], other[0])
    assert one[2].history == other[2].history
    assert len(one[2].history) == 3
    for a, b in zip(dense(one[0]), dense(other[0]), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@both_stores
@pytest.mark.parametrize("kind", [Clipped, Failing])
def test_a_step_that_calls_the_step_of_its_base_class_is_one_step(store, kind):
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # from now on torch runs hooks in SGD.step too
    runs = [sparse(store, cls) for cls in (torch.optim.SGD, kind)]
    for model, optimizer, rewirer in runs:
        train(model, optimizer, 10)
        assert rewirer.step == 10
        rewirer.check()
    assert_equal_runs(*runs)


@both_stores
@pytest.mark.parametrize("failing_step", [0, 2, 4])
def test_after_a_step_that_raised_the_next_one_counts(store, failing_step):
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    runs = [sparse(store, kind) for kind in (torch.optim.SGD, Failing)]
    for model, optimizer, rewirer in runs:
        for step in range(10):
            if step == failing_step and isinstance(optimizer, Failing):
                optimizer.fails = True
                with pytest.raises(ArithmeticError):
                    train(model, optimizer, 1, begin=step + 100)
                optimizer.zero_grad()
            train(model, optimizer, 1, begin=step)
        assert rewirer.step == 10
    assert_equal_runs(*runs)


def test_after_a_closure_that_raised_the_gradients_of_inactive_weights_are_ranked():
    """The second evaluation of LBFGS raises in a step that should rewire; the next step does."""
    model, optimizer, rewirer = sparse("masked", lambda p, lr: torch.optim.LBFGS(p, lr=lr, max_iter=3))
    inactive = []

    def train(step, fails=False):
        evaluations = 0

        def closure():
            nonlocal evaluations
            evaluations += 1
            optimizer.zero_grad()
            x, y = batch(step)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if fails and evaluations == 2:
                raise ArithmeticError
            if evaluations == 1:
                layer = rewirer.layers[0]
                inactive.append(bool(layer.parameter.grad[~layer.mask].any()))
            return loss

        optimizer.step(closure)

    train(0)
    train(1)
    with pytest.raises(ArithmeticError):
        train(2, fails=True)
    train(3)
    train(4)
    assert inactive == [False, False, True, True, False]
    assert [record.step for record in rewirer.history] == [3]
    assert_zero_off_mask(model)


def compiled_step(model, optimizer):
    step = torch.compile(optimizer.step, backend="eager")

    def train_step(x, y):
        F.cross_entropy(model(x), y).backward()
        step()
        optimizer.zero_grad()

    return train_step


def compiled_train_step(model, optimizer):
    def train_step(x, y):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return torch.compile(train_step, backend="eager")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # by torch, as it looks into a backward pass
@both_stores
@pytest.mark.parametrize("compiled", [compiled_step, compiled_train_step])
def test_a_compiled_step_rewires_as_an_ordinary_one(store, compiled):
    torch._dynamo.reset()
    runs = [sparse(store, kind) for kind in (torch.optim.SGD, Clipped)]
    model, optimizer, _ = runs[0]
    train(model, optimizer, 10)
    model, optimizer, rewirer = runs[1]
    train_step = compiled(model, optimizer)
    for step in range(10):
        train_step(*batch(step))
    assert rewirer.step == 10
    assert_equal_runs(*runs)
