"""``GlobalTop(sample=...)``: the strongest gradients of the network among a random sample of each layer."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.test_method import shown
from tests.fakes import ListLayer, _
from tests.networks import cnn, mlp, train

import rewire
from rewire.core import Signal
from rewire.core.capture import capture
from rewire.core.layer import Context
from rewire.parts import Constant, GlobalTop, Mix, Periodic
from rewire.parts.sampling import sample_inactive


def method_of(growth="gradient", sample=1.0, **options):
    method = rewire.ggr(density=0.2, every=1, until=10, growth=growth, sample=sample, **options)
    return replace(method, schedule=Periodic(1, None, Constant(0.5)))


def rewired(method, layers, ctx):
    return shown(rewire.core.plan_rewiring(method, capture(method, layers, ctx), ctx))


def test_the_strongest_of_both_samples_are_grown():
    first = ListLayer([0.5, 0.1, *[_] * 8], grad=[0, 0, 1, 3, 5, 7, 9, 11, 13, 15])
    second = ListLayer([0.1, 0.5, *[_] * 8], grad=[0, 0, 2, 4, 6, 8, 10, 12, 14, 16])
    splits = set()
    for seed in range(100):
        ctx = Context(step=1, seed=seed)
        samples = [sample_inactive(layer, 1.0, index, ctx).tolist() for index, layer in enumerate((first, second))]
        assert [len(sample) for sample in samples] == [2, 2]  # as many as each layer has weights
        ranked = sorted(
            (float(layer.read_at(Signal.GRAD, torch.tensor(position))), index, position)
            for index, (layer, sample) in enumerate(zip((first, second), samples, strict=True))
            for position in sample
        )
        # One weight of each layer goes (1 and 0), and the two strongest of the four sampled positions come.
        grown = [sorted(p for _g, index, p in ranked[-2:] if index == layer) for layer in (0, 1)]
        assert rewired(method_of(), [first, second], ctx) == [([1], grown[0]), ([0], grown[1])]
        splits.add(tuple(map(len, grown)))
    assert splits == {(0, 2), (1, 1), (2, 0)}


def test_a_just_dropped_weight_competes_with_the_sample():
    layer = ListLayer([0.5, 0.1, *[_] * 8], grad=[0, 99, 1, 2, 3, 4, 5, 6, 7, 8])
    assert rewired(method_of(), [layer], Context(step=1)) == [([1], [1])]
    ((_drop, grow),) = rewired(replace(method_of(), regrow_dropped=False), [layer], Context(step=1))
    assert grow == [max(sample_inactive(layer, 1.0, 0, Context(step=1)).tolist())]


def test_a_sample_of_all_positions_is_the_exact_ranking():
    layers = [
        ListLayer([0.5, 0.1, *[_] * 8], grad=[0, 0, 8, 7, 6, 5, 4, 3, 2, 1]),
        ListLayer([0.1, 0.5, *[_] * 8], grad=[0, 0, 1, 9, 1, 1, 1, 1, 1, 1]),
    ]
    for seed in range(10):
        ctx = Context(step=1, seed=seed)
        assert rewired(method_of(sample=4.0), layers, ctx) == rewired(method_of(sample=None), layers, ctx)
    assert rewired(method_of(sample=4.0), layers, Context(step=1)) == [([1], [2]), ([0], [3])]


@given(
    sizes=st.lists(st.integers(4, 60), min_size=1, max_size=4),
    sample=st.sampled_from([0.1, 0.5, 1.0, 3.0]),
    growth=st.sampled_from(["mix", "gradient", "random"]),
    scale=st.sampled_from(["raw", "layer"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_budgets_stay_exact(sizes, sample, growth, scale, seed):
    """Also where the sample has fewer gradients than there are weights to grow."""
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for size in sizes:
        weight = torch.randn(size, generator=generator).tolist()
        grad = torch.randint(-2, 3, (size,), generator=generator).tolist()
        layers.append(ListLayer([w if i % 3 == 0 else None for i, w in enumerate(weight)], grad=grad))
    n, total = sum(layer.nnz for layer in layers), sum(sizes)
    method = method_of(growth, sample)
    method = replace(method, density=Constant(n / total), allocate=GlobalTop(scale=scale, sample=sample))
    edits = rewired(method, layers, Context(step=1, seed=seed))
    assert sum(len(drop) for drop, _grow in edits) == sum(len(grow) for _drop, grow in edits)
    for layer, (drop, grow) in zip(layers, edits, strict=True):
        assert not set(grow) & (set(layer.active().tolist()) - set(drop))
        assert len(set(grow)) == len(grow)


@pytest.mark.parametrize("network", [cnn, mlp])
def test_both_stores_make_the_same_edits(network):
    def edits(store):
        model = network().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        method = rewire.ggr(density=0.3, every=3, until=12, fraction=0.3, sample=0.5)
        rewirer = rewire.sparsify(model, optimizer, method, store=store)
        train(model, optimizer, 10, shape=(3, 6, 6) if network is cnn else (12,), dtype=torch.float64)
        assert len(rewirer.history) == 3
        return [layer.active().tolist() for layer in rewirer.layers]

    assert edits("masked") == edits("packed")


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_a_resumed_run_draws_the_same_samples(store):
    def sparse():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        method = rewire.ggr(density=0.3, every=2, until=20, fraction=0.3, sample=0.5)
        return model, optimizer, rewire.sparsify(model, optimizer, method, store=store)

    def batches(model, optimizer, steps):
        for step in steps:
            x, y = torch.randn(16, 12, generator=torch.Generator().manual_seed(step)), torch.arange(16) % 4
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    model, optimizer, rewirer = sparse()
    batches(model, optimizer, range(3))
    saved = copy.deepcopy([one.state_dict() for one in (model, optimizer, rewirer)])
    resumed = sparse()
    for one, state in zip(resumed, saved, strict=True):
        one.load_state_dict(state)
    for who in ((model, optimizer, rewirer), resumed):
        batches(who[0], who[1], range(3, 8))
    assert [layer.active().tolist() for layer in rewirer.layers] == [
        layer.active().tolist() for layer in resumed[2].layers
    ]


def test_what_is_refused():
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="sample, candidates per weight of a layer, must be positive or None"):
            GlobalTop(sample=wrong)
    with pytest.raises(ValueError, match=r"sample=1.0 ranks gradients.*leave sample out"):
        GlobalTop(Signal.MOMENTUM, sample=1.0)


def test_a_method_without_a_sample_reads_as_before():
    """Checkpoints hold the method's text."""
    assert repr(GlobalTop()) == "GlobalTop(signal=Signal.GRAD, scale='raw')"
    assert repr(GlobalTop(sample=0.5)) == "GlobalTop(signal=Signal.GRAD, scale='raw', sample=0.5)"
    assert eval(repr(GlobalTop(sample=0.5)), {"GlobalTop": GlobalTop, "Signal": Signal}) == GlobalTop(sample=0.5)
    assert isinstance(rewire.ggr(density=0.1, every=1, until=2, sample=1.0).grow, Mix)
