"""EMA and SWA: an average has the topology of its model after every rewiring, and equal values in both stores."""

import copy
import io

import pytest
import torch
from tests.loops.loops import (
    METHODS,
    STORES,
    assert_same_topology,
    assert_zero_off_mask,
    batch,
    both_methods,
    both_stores,
    conv_net,
    dense,
    masks,
    sparse,
    sparse_weights,
    train,
)
from tests.networks import mlp
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn, update_bn

import rewire

pytestmark = pytest.mark.usefixtures("one_thread")
DECAY = 0.8
KINDS = {
    "ema": {"multi_avg_fn": get_ema_multi_avg_fn(DECAY)},
    "ema one by one": {"avg_fn": get_ema_avg_fn(DECAY)},
    "ema with buffers": {"avg_fn": get_ema_avg_fn(DECAY), "use_buffers": True},
    "swa": {},
    "swa with buffers": {"use_buffers": True},
}


def averaged(store, method, kind, steps=11, model=None, shape=(12,)):
    model, optimizer, rewirer = sparse(store, method, model)
    average = AveragedModel(model, **KINDS[kind])

    def after(_step):
        average.update_parameters(model)
        assert_same_topology(average, model)
        rewirer.check()

    train(model, optimizer, steps, after=after, shape=shape)
    assert len(rewirer.history) >= 3
    return model, average, rewirer


class ByHand:
    """What an average must be: each weight's own, since it was born, on dense tensors."""

    def __init__(self, model, rewirer):
        self.rewirer, self.rewirings = rewirer, 0
        self.model, self.values, self.masks = model, None, masks(model)

    def __call__(self, _step):
        now = sparse_weights(self.model)
        if self.values is None:
            self.values = now
        if len(self.rewirer.history) > self.rewirings:
            self.rewirings = len(self.rewirer.history)
            for i, (mask, before) in enumerate(zip(masks(self.model), self.masks, strict=True)):
                newborn = (now[i].abs() == self.birth) & mask
                self.values[i] = torch.where(mask & before & ~newborn, self.values[i], torch.where(mask, now[i], 0.0))
            self.masks = masks(self.model)
        self.values = [value.lerp(new, 1 - DECAY) for value, new in zip(self.values, now, strict=True)]

    birth = torch.tensor(1e-10, dtype=torch.float64)


@both_stores
@both_methods
def test_an_average_is_that_of_each_weight_since_its_birth(store, method):
    model, optimizer, rewirer = sparse(store, method)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    by_hand = ByHand(model, rewirer)

    def after(step):
        average.update_parameters(model)
        by_hand(step)
        for mine, theirs in zip(sparse_weights(average.module), by_hand.values, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)

    train(model, optimizer, 12, after=after)
    assert len(rewirer.history) == 4


@both_methods
@pytest.mark.parametrize("kind", list(KINDS))
def test_both_stores_have_the_same_average(method, kind):
    (one, a, _), (other, b, _) = (averaged(store, method, kind) for store in STORES)
    assert_same_topology(a, b)
    for x, y in zip(dense(a.module), dense(b.module), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-10)
    x, _ = batch(99)
    torch.testing.assert_close(a(x), b(x), rtol=0, atol=1e-9)
    assert not torch.equal(a(x), one(x))
    assert not torch.equal(b(x), other(x))


@both_stores
@both_methods
def test_an_average_has_as_many_weights_as_its_model(store, method):
    _model, average, rewirer = averaged(store, method, "ema")
    count = sum(int((weight != 0).sum()) for weight in sparse_weights(average.module))
    assert count == rewirer.nnz == sum(int(mask.sum()) for mask in masks(average))
    assert_zero_off_mask(average)


@both_stores
def test_update_bn_after_averaging_with_buffers_and_without(store):
    for kind in ("swa", "ema with buffers"):
        _model, average, _ = averaged(store, "ggr", kind, model=conv_net(), shape=(3, 6, 6))
        before = average.module[1].running_mean.clone()
        update_bn([batch(step, (3, 6, 6)) for step in range(3)], average)
        assert not torch.equal(average.module[1].running_mean, before)
        assert average(batch(0, (3, 6, 6))[0]).isfinite().all()


def file_of(*objects):
    file = io.BytesIO()
    torch.save([one.state_dict() for one in objects], file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@both_stores
@both_methods
@pytest.mark.parametrize("average_first", [False, True])
def test_a_resumed_average_is_the_uninterrupted_one(store, method, average_first):
    def build():
        model, optimizer, rewirer = sparse(store, method)
        return model, optimizer, rewirer, AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))

    def go_on(begin, steps):
        train(model, optimizer, steps, begin, after=lambda _: average.update_parameters(model))

    model, optimizer, rewirer, average = build()
    go_on(0, 7)
    saved = file_of(model, optimizer, rewirer, average)
    go_on(7, 6)
    expected = dense(average.module)

    model, optimizer, rewirer, average = build()
    parts = list(zip((model, optimizer, rewirer, average), saved, strict=True))
    for part, state in reversed(parts) if average_first else parts:
        part.load_state_dict(state)
    go_on(7, 6)
    assert_same_topology(model, average)
    for mine, theirs in zip(dense(average.module), expected, strict=True):
        assert torch.equal(mine, theirs)


@both_stores
def test_an_average_whose_model_was_not_loaded_is_not_updated(store):
    _model, average, _ = averaged(store, "ggr", "ema")
    fresh, optimizer, _ = sparse(store, "ggr")
    other = AveragedModel(fresh, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    other.load_state_dict(average.state_dict())
    x, _ = batch(0)
    assert torch.equal(other(x), average(x))  # for evaluation it needs no model
    with pytest.raises(ValueError, match="different topologies"):
        other.update_parameters(fresh)
    with pytest.raises(RuntimeError, match="does not have the topology of the model any more"):
        train(fresh, optimizer, 3)


def test_an_average_that_strayed_in_a_masked_layer_of_a_packed_model_lets_nothing_move():
    def build():
        model = mlp(dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rewirer = rewire.sparsify(model, optimizer, METHODS["ggr"], store="packed", keep_masked="4")
        return model, optimizer, rewirer, AveragedModel(model)

    trained, optimizer, _, average = build()
    train(trained, optimizer, 4)
    model, optimizer, rewirer, other = build()
    other.module[4].load_state_dict(average.module[4].state_dict())
    before = [layer.active().clone() for layer in rewirer.layers]
    with pytest.raises(RuntimeError, match="the average of 4 does not have the topology"):
        train(model, optimizer, 3)
    assert all(torch.equal(a, layer.active()) for a, layer in zip(before, rewirer.layers, strict=True))


@both_stores
def test_an_average_of_another_model_is_refused(store):
    model, _, _ = sparse(store, "rigl")
    other, optimizer, _ = sparse(store, "rigl")
    train(other, optimizer, 4)
    average = AveragedModel(model)
    average.update_parameters(model)
    with pytest.raises(ValueError, match="different topologies"):
        average.update_parameters(other)


@both_stores
def test_copies_and_pickles_of_an_averaged_model(store, tmp_path):
    model, average, _ = averaged(store, "ggr", "swa with buffers")
    torch.save(average, tmp_path / "average.pt")
    x, _ = batch(0)
    for one in (copy.deepcopy(average), torch.load(tmp_path / "average.pt", weights_only=False)):
        assert torch.equal(one(x), average(x))
        one.update_parameters(model)  # of its own
        assert not torch.equal(one(x), average(x))


@both_stores
def test_an_average_of_a_removed_rewirer_keeps_its_topology(store):
    _model, average, rewirer = averaged(store, "ggr", "ema")
    topology = [mask.clone() for mask in masks(average)]
    rewirer.remove()
    average(batch(0)[0])
    assert all(torch.equal(a, b) for a, b in zip(masks(average), topology, strict=True))


@both_stores
def test_a_falling_density_empties_the_average_too(store):
    method = rewire.gmp(density=0.2, every=3, until=12)
    model, optimizer, rewirer = sparse(store, method)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    train(model, optimizer, 14, after=lambda _: average.update_parameters(model))
    assert rewirer.density == pytest.approx(0.2, abs=0.01)
    assert sum(int((w != 0).sum()) for w in sparse_weights(average.module)) == rewirer.nnz


def test_the_methods_of_these_tests_move_weights_between_layers_or_not():
    counts = {}
    for name in METHODS:
        model, optimizer, rewirer = sparse("masked", name)
        before = [layer.nnz for layer in rewirer.layers]
        train(model, optimizer, 12)
        counts[name] = before == [layer.nnz for layer in rewirer.layers]
    assert counts == {"ggr": False, "rigl": True}
