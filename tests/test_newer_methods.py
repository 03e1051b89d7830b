"""AC/DC, MEST and GSE by hand, and where their phases and samples show in a training."""

from dataclasses import replace

import pytest
import torch
from tests.core.test_method import shown
from tests.fakes import ListLayer, _
from tests.networks import cnn, mlp, train

import rewire
from rewire.core import Signal
from rewire.core.capture import capture
from rewire.core.layer import Context
from rewire.parts import Constant, Periodic, StrongestOfSample


def densities(method, steps, store="masked"):
    """The density of the network after each step of a training."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rewirer = rewire.sparsify(model, optimizer, method, store=store)
    seen = [rewirer.density]
    train(model, optimizer, steps, after=lambda _step: seen.append(rewirer.density))
    return [round(one, 2) for one in seen]


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_acdc_is_dense_and_sparse_in_turn(store):
    method = rewire.acdc(density=0.25, every=3, until=9)
    assert densities(method, 12, store) == [1.0] * 3 + [0.25] * 3 + [1.0] * 3 + [0.25] * 4


def test_acdc_keeps_the_largest_weights_of_the_network_and_restores_all():
    layers = [ListLayer([0.1, 0.2, 0.3, 0.4]), ListLayer([0.5, 0.6, 0.7, 0.8])]
    method = rewire.acdc(density=0.5, every=2, until=6)
    # Half of the eight stay. The first layer keeps its largest weight, 0.4; then 0.8, 0.7 and 0.6 of the second.
    assert shown(rewire.core.plan_rewiring(method, layers, Context(step=2))) == [([0, 1, 2], []), ([0], [])]
    layers = [ListLayer([_, _, _, 0.4]), ListLayer([_, 0.6, 0.7, 0.8])]
    assert shown(rewire.core.plan_rewiring(method, layers, Context(step=4))) == [([], [0, 1, 2]), ([], [0])]


def test_acdc_needs_an_end():
    with pytest.raises(ValueError, match="needs a last step"):
        rewire.acdc(density=0.1, every=10, until=None)
    assert rewire.acdc(density=0.1, every=10, until=35) == rewire.acdc(density=0.1, every=10, until=35, fraction=0.4)
    assert rewire.acdc(density=0.1, every=10, until=35).density(30) == 0.1


def test_mest_drops_by_weight_and_gradient_and_grows_at_random():
    layer = ListLayer([0.5, _, 0.1, 0.3, _, 0.2], grad=[0, 9, 40, 0, 9, 0])
    method = rewire.mest(density=2 / 3, every=1, until=8, balance=0.01, fraction=0.5)
    # |w| + |g| / 100: 0.5, 0.5, 0.3, 0.2 at the positions 0, 2, 3, 5. The half of the four that goes: 3 and 5.
    ((dropped, grown),) = shown(rewire.core.plan_rewiring(method, [layer], Context(step=1)))
    assert dropped == [3, 5]
    assert len(grown) == 2
    assert set(grown) <= {1, 3, 4, 5}
    places = {
        tuple(rewire.core.plan_rewiring(method, [layer], Context(step=1, seed=s))[0].grow.tolist()) for s in range(40)
    }
    assert len(places) == 6  # all pairs of the four free positions: gradients do not decide
    assert [method.schedule(step) for step in (1, 5, 6, 8, 9)] == [0.5, 0.5, 0.25, 0.25, None]
    for balance in (-0.1, float("nan"), float("inf"), "much"):
        with pytest.raises(ValueError, match="balance is the factor of the gradient and must be at least 0"):
            rewire.mest(density=0.1, every=1, until=8, balance=balance)
    with pytest.raises(ValueError, match="needs a last step: pass until="):
        rewire.mest(density=0.1, every=1, until=None)


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_mest_with_a_soft_bound_holds_more_than_its_density_until_the_end(store):
    method = rewire.mest_soft(density=0.2, every=2, until=8, fraction=0.5)
    assert densities(method, 10, store) == [0.3] * 6 + [0.25] * 2 + [0.2] * 3


def test_mest_with_a_soft_bound_drops_to_its_density_and_grows_above_it():
    layer = ListLayer([0.5, 0.6, 0.7, 0.8, 0.1, 0.2, _, _, _, _, _, _, _, _, _, _, _, _, _, _])
    method = rewire.mest_soft(density=0.2, every=1, until=8, fraction=0.5)
    # 6 of 20 are alive. All above 4 go, the two smallest; two come: 6 again.
    ((dropped, grown),) = shown(rewire.core.plan_rewiring(method, [layer], Context(step=1)))
    assert (dropped, len(grown)) == ([4, 5], 2)
    # From step 6 on only one comes, and at step 8 none.
    ((dropped, grown),) = shown(rewire.core.plan_rewiring(method, [layer], Context(step=6)))
    assert (dropped, len(grown)) == ([4, 5], 1)
    ((dropped, grown),) = shown(rewire.core.plan_rewiring(method, [layer], Context(step=8)))
    assert (dropped, grown) == ([4, 5], [])
    assert rewire.mest_soft(density=0.9, every=1, until=8).density(0) == 1.0  # never more than all
    for density in (0, 1.5):
        with pytest.raises(ValueError, match=rf"density must be a number in \(0, 1\], .* not {density}"):
            rewire.mest_soft(density=density, every=1, until=8)
    with pytest.raises(ValueError, match="fraction, the surplus over the density, must be at least 0, not -0.5"):
        rewire.mest_soft(density=0.1, every=1, until=8, fraction=-0.5)


def test_gse_ranks_a_sample_that_has_as_many_positions_as_the_layer_has_weights():
    weight = [0.5, 0.1, *[_] * 8]
    layer = ListLayer(weight, grad=[0, 99, 1, 2, 3, 4, 5, 6, 7, 8])
    method = rewire.gse(density=0.2, every=1, until=10)
    method = replace(method, schedule=Periodic(1, None, Constant(0.5)))
    grown = set()
    for seed in range(200):
        ctx = Context(step=1, seed=seed)
        sample = method.grow.sample(layer, 0, ctx).tolist()
        assert len(sample) == 2
        assert set(sample) <= set(range(2, 10))
        ((drop, grow),) = shown(rewire.core.plan_rewiring(method, [layer], ctx))
        assert (drop, grow) == ([1], [max(sample)])  # the larger gradient; not 1, which was just dropped
        assert shown(rewire.core.plan_rewiring(method, capture(method, [layer], ctx), ctx)) == [(drop, grow)]
        grown |= set(grow)
    assert grown == set(range(3, 10))  # 2, the smallest gradient, is never the larger of two


def test_gse_fills_up_at_random_when_the_sample_is_too_small_or_has_no_gradient():
    layer = ListLayer([0.5, 0.1, 0.2, 0.3, _, _, _, _, _, _], grad=[0] * 9 + [1])
    method = replace(rewire.gse(density=0.4, every=1, until=10, ratio=0.25), schedule=Periodic(1, None, Constant(0.5)))
    ((drop, grow),) = shown(rewire.core.plan_rewiring(method, [layer], Context(step=1)))
    assert drop == [1, 2]
    assert len(grow) == 2
    assert not set(grow) & {0, 3}
    with pytest.raises(ValueError, match="ratio, candidates per weight of the layer, must be positive, not 0"):
        StrongestOfSample(ratio=0)


@pytest.mark.parametrize("network", [cnn, mlp])
def test_gse_makes_the_same_edits_in_both_stores(network):
    def edits(store):
        model = network().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        method = rewire.gse(density=0.3, every=3, until=12, fraction=0.3)
        rewirer = rewire.sparsify(model, optimizer, method, store=store)
        train(model, optimizer, 10, shape=(3, 6, 6) if network is cnn else (12,), dtype=torch.float64)
        assert len(rewirer.history) == 3
        return [layer.active().tolist() for layer in rewirer.layers]

    assert edits("masked") == edits("packed")


def test_a_growth_reads_only_what_it_sampled():
    class Elsewhere(StrongestOfSample):
        def __call__(self, layer, k, ctx):
            return layer.read_at(Signal.GRAD, torch.tensor([2, 3, 4, 5, 6, 7, 8, 9]))

    layer = ListLayer([0.5, 0.1, *[_] * 8], grad=[1] * 10)
    method = replace(rewire.gse(density=0.2, every=1, until=10), grow=Elsewhere())
    method = replace(method, schedule=Periodic(1, None, Constant(0.5)))
    views = capture(method, [layer], Context(step=1))
    with pytest.raises(ValueError, match="positions of layer that were not captured before the optimizer's step"):
        rewire.core.plan_rewiring(method, views, Context(step=1))
