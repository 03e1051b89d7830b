from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import ListLayer, _

import rewire
from rewire import Method
from rewire.core import Signal
from rewire.core.capture import capture
from rewire.core.layer import Context
from rewire.core.method import budget
from rewire.parts import Constant, Cubic, GlobalTop, Periodic, Stepwise, Strongest

NAMES = ["set", "rigl", "set_rigl", "dsr", "deepr", "snfs", "ggr", "gmp", "granet"]


def make(name, density, **changes):
    method = rewire.METHODS[name](density=density, every=1, until=100, fraction=0.3)
    return replace(method, density=Constant(density), **changes)


def shown(edits):
    return [(e.drop.tolist(), e.grow.tolist()) for e in edits]


def test_rigl_on_eight_weights():
    layer = ListLayer([0.5, _, -0.1, _, 0.3, _, _, 0.2], grad=[0, 3, 0, -4, 0, 2, 0, 9])
    # 4 active; a half goes: -0.1 (position 2) and 0.2 (7). Candidates' |g|: 1:3 2:0 3:4 5:2 6:0 7:9. Grown: 7 and 3.
    method = make("rigl", 0.5, schedule=Periodic(1, None, Constant(0.5)))
    assert shown(rewire.core.plan_rewiring(method, [layer], Context(step=1))) == [([2, 7], [3, 7])]


def test_ggr_moves_weights_to_the_layer_with_the_largest_missing_gradients():
    layers = [
        ListLayer([0.5, 0.1, 0.4, 0.2, _, _, _, _], grad=[0, 0, 0, 0, 1, 2, 0, 0]),
        ListLayer([0.9, 0.8, 0.3, 0.7, _, _, _, _], grad=[0, 0, 0, 0, 9, 8, 7, 3]),
    ]
    method = replace(make("ggr", 0.5), grow=Strongest(), schedule=Periodic(1, None, Constant(0.5)))
    # Two of each layer go: {1, 3} and {2, 3}. The four largest missing gradients, 9 8 7 3, are all in the second layer.
    assert shown(rewire.core.plan_rewiring(method, layers, Context(step=1))) == [([1, 3], []), ([2, 3], [4, 5, 6, 7])]


def test_gmp_drops_what_the_falling_density_no_longer_allows():
    layers = [ListLayer([0.1, 0.2, 0.3, 0.4]), ListLayer([0.5, 0.6, 0.7, 0.8])]
    method = replace(rewire.gmp(density=0.5, every=1, until=1), density=Cubic(1.0, 0.5, begin=0, until=1))
    assert shown(rewire.core.plan_rewiring(method, layers, Context(step=1))) == [([0, 1], []), ([0, 1], [])]


def test_granet_drops_network_wide_and_grows_in_place():
    layers = [
        ListLayer([0.1, 0.2, 0.3, 0.4], grad=[1, 2, 3, 4]),
        ListLayer([0.5, 0.6, 0.7, 0.8], grad=[0, 0, 0, 0]),
    ]
    method = rewire.granet(density=0.5, every=1, until=2, fraction=0.5, initial=1.0)
    method = replace(method, density=Constant(0.5), schedule=Periodic(1, 2, Constant(0.5)))
    # 8 alive, 4 allowed: 4 in excess and a half of 4 moves, 6 in all; the first layer keeps 0.4, its largest.
    # Lowest six of the rest: 0.1 0.2 0.3 | 0.5 0.6 0.7. Two come back, in proportion to what was lost: one each.
    # By gradient position 2 (|g| = 3) in the first; in the second none has a gradient: one of them at random.
    (first, second) = shown(rewire.core.plan_rewiring(method, layers, Context(step=1)))
    assert first == ([0, 1, 2], [2])
    assert second[0] == [0, 1, 2]
    assert len(second[1]) == 1


def test_functions_are_known_by_their_names():
    """Checkpoints store the repr of a method, and ranks compare it: it must not change with the process."""

    def start(specs, n, ctx):
        raise NotImplementedError

    method = replace(make("rigl", 0.5), start=start, birth=lambda n, layer, ctx: torch.zeros(n))
    assert "start=test_functions_are_known_by_their_names.<locals>.start, " in repr(method)
    assert "birth=test_functions_are_known_by_their_names.<locals>.<lambda>, " in repr(method)
    assert " at 0x" not in repr(method)


def test_nothing_happens_when_it_is_not_time_or_there_is_nothing_to_move():
    layer = ListLayer([0.5, _, 0.1, _])
    method = rewire.set_(density=0.5, every=2, until=4)
    assert rewire.core.plan_rewiring(method, [layer], Context(step=1)) is None
    assert shown(rewire.core.plan_rewiring(method, [layer], Context(step=4))) == [
        ([], [])
    ]  # the fraction has fallen to 0


@st.composite
def cases(draw):
    layers, density = [], draw(st.floats(0.05, 0.9))
    sizes = draw(st.lists(st.integers(2, 25), min_size=1, max_size=5))
    total = max(round(density * sum(sizes)), len(sizes))
    counts = rewire.parts.Uniform()(
        [rewire.core.LayerSpec("", torch.Size([s])) for s in sizes], total, [1] * len(sizes)
    )
    for size, count in zip(sizes, counts, strict=True):
        active = draw(st.permutations(range(size)))[:count]
        # Few distinct values, so that ties and zeros are common.
        value = st.sampled_from([-1.0, -0.5, -0.0005, 0.0005, 0.5, 1.0])
        weight = [draw(value) if i in active else _ for i in range(size)]
        grad, momentum = ([draw(st.sampled_from([-2.0, -1.0, 0.0, 0.0, 1.0, 3.0])) for _i in weight] for _j in "gm")
        layers.append(ListLayer(weight, grad, momentum, sign=[draw(st.sampled_from([-1, 1])) for _i in weight]))
    return layers, total / sum(sizes)


@settings(max_examples=60)
@given(cases(), st.sampled_from(NAMES), st.booleans(), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_every_rewiring_is_exact_and_its_capture_answers_the_same(case, name, regrow, fraction):
    layers, density = case
    inactive = sum(layer.shape.numel() - len(layer.active()) for layer in layers)
    if not regrow and inactive < sum(len(layer.active()) for layer in layers):
        return  # there may be too few other places to grow
    method = make(name, density, regrow_dropped=regrow, schedule=Periodic(1, None, Constant(fraction)))
    edits = rewire.core.plan_rewiring(method, layers, Context(step=1, memory={}))
    alive = 0
    for layer, edit in zip(layers, edits, strict=True):
        active, drop, grow = (set(t.tolist()) for t in (layer.active(), edit.drop, edit.grow))
        assert drop <= active
        assert not grow & (active - drop)
        assert regrow or not grow & drop
        assert len(grow) == len(edit.grow) == len(edit.value)
        assert len(active) - len(drop) >= 1
        alive += len(active - drop | grow)
    assert alive == budget(method, layers, 1)
    again = rewire.core.plan_rewiring(method, capture(method, layers, Context(step=1)), Context(step=1, memory={}))
    assert shown(again) == shown(edits)


@given(cases(), st.sampled_from([0.1, 0.5]))
def test_ggr_counts_equal_a_brute_force_global_sort(case, fraction):
    layers, density = case
    method = make("ggr", density, schedule=Periodic(1, None, Constant(fraction)))
    edits = rewire.core.plan_rewiring(method, layers, Context(step=1))
    k = sum(len(edit.drop) for edit in edits)
    candidates = []
    for i, (layer, edit) in enumerate(zip(layers, edits, strict=True)):
        kept = set(layer.active().tolist()) - set(edit.drop.tolist())
        grads = layer._signals[Signal.GRAD].abs().tolist()
        candidates += [(-g, i, p) for p, g in enumerate(grads) if p not in kept and g > 0]
    best = sorted(candidates)[:k]
    if len(best) == k:
        assert [len(edit.grow) for edit in edits] == [
            sum(owner == i for _v, owner, _p in best) for i in range(len(edits))
        ]


def test_a_method_is_a_few_lines():
    method = replace(rewire.rigl(density=0.1, every=10, until=100), allocate=GlobalTop(scale="layer"))
    assert method.allocate == GlobalTop(Signal.GRAD, "layer")
    assert hash(method) == hash(replace(method))


@pytest.mark.parametrize("density", [0, -0.1, 1.1, "0.1", None, float("nan")])
def test_density_out_of_range(density):
    with pytest.raises(ValueError, match=r"density must be a number in \(0, 1\]"):
        rewire.ggr(density=density, every=1, until=10)


def test_fields_must_be_parts():
    with pytest.raises(TypeError, match="grow must be a part"):
        replace(rewire.ggr(density=0.1, every=1, until=10), grow="random")
    with pytest.raises(TypeError, match="density must be a curve"):
        replace(rewire.ggr(density=0.1, every=1, until=10), density=len)


def test_a_rising_density_grows_what_is_missing_and_moves_a_share():
    layers = [
        ListLayer([0.5, 0.1, _, _, _, _], grad=[0, 0, 9, 1, 2, 8]),
        ListLayer([0.9, 0.2, _, _, _, _], grad=[0, 0, 3, 7, 6, 4]),
    ]
    rising = Stepwise((1 / 3, 0.75), at=(1,))
    method = replace(rewire.rigl(density=0.5, every=1, until=10), density=rising)
    # 4 of 12 are alive and 9 allowed. Nothing goes and 5 come, divided by room, which is 4 and 4: so 3 and 2.
    still = replace(method, schedule=Periodic(1, None, Constant(0.0)))
    assert shown(rewire.core.plan_rewiring(still, layers, Context(step=1))) == [([], [2, 4, 5]), ([], [3, 4])]
    # A half of 4 goes, one of each layer, and 7 come, in proportion to what was lost: 4 and 3.
    moving = replace(method, schedule=Periodic(1, None, Constant(0.5)))
    edits = [([1], [2, 3, 4, 5]), ([1], [3, 4, 5])]
    assert shown(rewire.core.plan_rewiring(moving, layers, Context(step=1))) == edits
    # By the gradients of the whole network, 9 8 7 6 4: two for the first layer, three for the second.
    ranked = replace(still, allocate=GlobalTop())
    edits = [([], [2, 5]), ([], [3, 4, 5])]
    assert shown(rewire.core.plan_rewiring(ranked, layers, Context(step=1))) == edits
    for one in (still, moving, ranked):
        captured = capture(one, layers, Context(step=1))
        now = rewire.core.plan_rewiring(one, layers, Context(step=1))
        assert shown(rewire.core.plan_rewiring(one, captured, Context(step=1))) == shown(now)


def test_a_rising_density_goes_as_far_as_frozen_layers_allow():
    layers = [ListLayer([0.5, _, _, _], frozen=True), ListLayer([0.9, _, _, _])]
    method = replace(rewire.set_(density=0.5, every=1, until=1), density=Stepwise((0.25, 1.0), at=(1,)))
    (first, second) = shown(rewire.core.plan_rewiring(method, layers, Context(step=1)))
    assert first == ([], [])
    assert second[1] == [1, 2, 3]


@settings(max_examples=60)
@given(cases(), st.sampled_from(NAMES), st.floats(0.1, 1.0), st.sampled_from([0.0, 0.3]), st.booleans())
def test_budgets_are_exact_when_the_density_rises_and_falls(case, name, later, fraction, regrow):
    layers, density = case
    method = make(name, density, regrow_dropped=regrow, schedule=Periodic(1, None, Constant(fraction)))
    total = sum(layer.shape.numel() for layer in layers)
    target = max(round(later * total), len(layers))
    if target < sum(layer.nnz for layer in layers) and not method.drop.exact:
        return
    method = replace(method, density=Stepwise((density, target / total), at=(1,)))
    edits = rewire.core.plan_rewiring(method, layers, Context(step=1, memory={}))
    assert sum(layer.nnz - len(e.drop) + len(e.grow) for layer, e in zip(layers, edits, strict=True)) == target
    captured = capture(method, layers, Context(step=1))
    assert shown(rewire.core.plan_rewiring(method, captured, Context(step=1, memory={}))) == shown(edits)


def test_dsr_cannot_follow_a_falling_density():
    with pytest.raises(ValueError, match="a falling density needs a drop"):
        replace(rewire.dsr(density=0.1, every=1, until=10), density=Cubic(0.5, 0.1, begin=0, until=10))
    dip = Stepwise((0.5, 0.1, 0.7), at=(3, 6))
    with pytest.raises(ValueError, match="a falling density needs a drop"):
        replace(rewire.dsr(density=0.1, every=1, until=10), density=dip)

    @dataclass(frozen=True)
    class Secretly:  # a curve from outside whose ends do not show that it falls
        def __call__(self, step):
            return 0.25 if step == 1 else 0.75

        def ends(self):
            return 0.75, 0.75

    layers = [ListLayer([0.5, 0.1, 0.7, _]), ListLayer([0.9, 0.2, 0.3, _])]
    method = replace(rewire.dsr(density=0.1, every=1, until=10), density=Secretly())
    with pytest.raises(ValueError, match=r"falls to 2 weights, but drop=BelowThreshold\(.*\) leaves 6"):
        rewire.core.plan_rewiring(method, layers, Context(step=1))


def test_densities_out_of_range_between_the_ends():
    with pytest.raises(ValueError, match=r"density must be a number in \(0, 1\].* not 1.5"):
        replace(rewire.rigl(density=0.1, every=1, until=10), density=Stepwise((0.5, 1.5, 0.1), at=(3, 6)))


def test_rewire_is_a_method_of_parts_only():
    assert isinstance(rewire.ggr(density=0.1, every=1, until=10), Method)
