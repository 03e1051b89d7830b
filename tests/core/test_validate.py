"""Every wrong answer of a part is a sentence that names the part and the layer, and nothing has changed then."""

from dataclasses import dataclass, replace

import pytest
import torch
from tests.fakes import ListLayer, _
from tests.networks import mlp, train
from torch import tensor

import rewire
from rewire.core import LayerSpec, Signal
from rewire.core.capture import capture
from rewire.core.layer import Context
from rewire.core.method import first_positions
from rewire.parts import Constant, GlobalTop, InPlace, Lowest, Periodic, Strongest

METHOD = rewire.rigl(density=0.6, every=1, until=10)
HALF = Periodic(1, None, Constant(0.5))


@dataclass(frozen=True)
class Returns:
    """A part that returns what it is told to."""

    answer: object
    exact = True
    signals = frozenset()

    def most(self, *_arguments):
        return [9, 9]

    def __call__(self, *_arguments):
        return self.answer


def layers():
    return [
        ListLayer([0.5, _, 0.1, _, 0.3, 0.2], grad=[0, 3, 0, 4, 0, 0], name="one"),
        ListLayer([0.9, _, _, 0.8], grad=[0, 5, 6, 0], name="two"),
    ]


def plan(**parts):
    """Three of the six weights go and come back."""
    return rewire.core.plan_rewiring(replace(METHOD, schedule=HALF, **parts), layers(), Context(step=1))


def test_right_answers_pass():
    edits = plan(drop=Returns([tensor([0, 2]), tensor([3])]), allocate=Returns([1, 2]))
    assert [edit.drop.tolist() for edit in edits] == [[0, 2], [3]]
    assert [edit.grow.tolist() for edit in edits] == [[3], [1, 2]]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ([tensor([0, 2])], r"for one: expected 2 tensors, one for each layer, not 1 lists"),
        (
            tensor([[0, 2]]),
            r"for one: expected 2 tensors, one for each layer, not a tensor of int64 and shape \(1, 2\)",
        ),
        ([[0, 2], tensor([3])], r"for one: expected a one-dimensional int64 tensor, not \[0, 2\]"),
        ([tensor([0, 2]), tensor([3.0])], r"for two: expected .* not a tensor of float32 and shape \(1,\)"),
        ([tensor([2, 0]), tensor([3])], "for one: positions must be sorted and distinct, but 0 comes after 2"),
        ([tensor([2, 2]), tensor([3])], "for one: positions must be sorted and distinct, but 2 occurs twice"),
        ([tensor([0, 6]), tensor([3])], "for one: position 6 is not one of the layer's, 0 to 5"),
        ([tensor([-1, 0]), tensor([3])], "for one: position -1 is not one of the layer's, 0 to 5"),
        ([tensor([0, 1]), tensor([3])], "for one: there is no weight at position 1"),
        ([tensor([0]), tensor([0, 3])], "drops 2 weights of two, but 1 can be dropped .it has 2 weights and keeps"),
        ([tensor([0]), tensor([3])], r"is `exact` and must drop 3 weights, but drops 2: \[1, 1\]"),
    ],
)
def test_wrong_drops(answer, sentence):
    with pytest.raises(ValueError, match=r"^drop=Returns\(.*" + sentence):
        plan(drop=Returns(answer))


def test_a_drop_beyond_its_own_limit_and_from_a_frozen_layer():
    class Modest(Returns):
        def most(self, *_arguments):
            return [1, 2]

    with pytest.raises(ValueError, match="drops 2 weights of one, but its `most` allows 1"):
        plan(drop=Modest([tensor([0, 2]), tensor([3])]))
    frozen = layers()
    frozen[0].frozen = True
    method = replace(
        METHOD, schedule=Periodic(1, None, Constant(0.2)), drop=Returns([tensor([0]), tensor([], dtype=int)])
    )
    with pytest.raises(ValueError, match=r"drops 1 weights of one, but 0 can be dropped \(it is frozen\)"):
        rewire.core.plan_rewiring(method, frozen, Context(step=1))


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (3, "must return a list of 2 integers, one for each layer, not 3"),
        ([3], r"must return a list of 2 integers, one for each layer, not \[3\]"),
        ([1, 2.0], "must return integers, not 2.0 for two"),
        ([4, -1], "must not return a negative number, but returns -1 for two"),
        ([0, 4], "gives 4 weights to two, which has room for 3"),
        ([1, 1], r"must divide 3 weights, but its counts sum to 2: \[1, 1\]"),
    ],
)
def test_wrong_allocations(answer, sentence):
    with pytest.raises(ValueError, match=r"^allocate=Returns\(.*" + sentence):
        plan(allocate=Returns(answer))


@dataclass(frozen=True)
class GrowsIn:
    """Grows given positions in a layer, and at random in the others."""

    layer: str
    positions: object
    signals = frozenset()

    def __call__(self, layer, k, ctx):
        return self.positions if layer.name == self.layer else rewire.parts.AtRandom()(layer, k, ctx)


@pytest.mark.parametrize(
    ("positions", "sentence"),
    [
        (tensor([1]), "must grow 2 weights in one, but grows 1"),
        (tensor([1, 0]), "for one: positions must be sorted and distinct, but 0 comes after 1"),
        (tensor([1, 1]), "for one: positions must be sorted and distinct, but 1 occurs twice"),
        (tensor([1, 7]), "for one: position 7 is not one of the layer's, 0 to 5"),
        (tensor([1, 4]), "for one: there is a weight at position 4 already$"),
        (None, "for one: expected a one-dimensional int64 tensor, not None"),
        (tensor([1, 3], device="meta"), "for one: expected positions, not a tensor of int64 .* on the meta device"),
    ],
)
def test_wrong_growths(positions, sentence):
    # Of the layer "one" the smallest weights go, at 2 and 5; 0 and 4 stay.
    with pytest.raises(ValueError, match=r"^grow=GrowsIn\(.*" + sentence):
        plan(grow=GrowsIn("one", positions))


def test_growth_where_a_weight_was_just_dropped():
    assert plan(grow=GrowsIn("one", tensor([1, 2])))[0].grow.tolist() == [1, 2]
    with pytest.raises(
        ValueError, match="a weight at position 2 already, or one was just dropped and may not come back"
    ):
        plan(grow=GrowsIn("one", tensor([1, 2])), regrow_dropped=False)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (torch.zeros(3), r"must return a tensor of 2 values for one, not a tensor of float32 and shape \(3,\)"),
        (0.0, "must return a tensor of 2 values for one, not 0.0"),
        (tensor([0.0, float("nan")]), "returns values for one that are not finite"),
        (torch.zeros(2, dtype=torch.complex64), "must return real values for one, whose weights are float64, not a"),
        (torch.zeros(2, device="meta"), "must return real values for one, .* on the meta device"),
    ],
)
def test_wrong_births(values, sentence):
    with pytest.raises(ValueError, match=r"^birth=Returns\(.*" + sentence):
        plan(birth=Returns(values))


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ([tensor([0, 1]), tensor([4])], "for two: position 4 is not one of the layer's, 0 to 3"),
        ([tensor([1, 0]), tensor([3])], "for one: positions must be sorted and distinct, but 0 comes after 1"),
        ([tensor([0, 1]), tensor([], dtype=torch.int64)], "places no weight in two: every layer needs at least one"),
        ([tensor([0, 1]), tensor([0, 1])], r"must place 3 weights, but places 4: \[2, 2\]"),
        (None, "for one: expected 2 tensors, one for each layer, not None"),
        ([tensor([0]), tensor([0], device="meta")], "for two: expected positions, not a tensor .* on the meta device"),
    ],
)
def test_wrong_starts(answer, sentence):
    specs = [LayerSpec("one", torch.Size([2, 3])), LayerSpec("two", torch.Size([2, 2]))]
    with pytest.raises(ValueError, match=r"^start=Returns\(.*" + sentence):
        first_positions(replace(METHOD, start=Returns(answer)), specs, 3, Context())


@pytest.mark.parametrize(
    ("role", "member"),
    [("drop", "signals"), ("drop", "most"), ("drop", "exact"), ("allocate", "most"), ("grow", "signals")],
)
def test_a_part_that_lacks_something_is_refused_when_the_method_is_built(role, member):
    members = {"signals": frozenset(), "most": lambda *_: [], "exact": True, "__call__": lambda *_: []}
    part = type("Half", (), {name: value for name, value in members.items() if name != member})()
    with pytest.raises(TypeError, match=rf"^{role}=<.*Half object .*> has no `{member}`: "):
        replace(METHOD, **{role: part})


def test_a_class_and_signals_that_are_none_are_refused():
    with pytest.raises(TypeError, match="drop must be an instance, not the class Lowest: call it"):
        replace(METHOD, drop=Lowest)
    with pytest.raises(
        TypeError, match=r"grow=Strongest\(signal='grad'\) declares 'grad', which is neither a Signal nor"
    ):
        replace(METHOD, grow=Strongest("grad"))

    class Listed(Returns):
        signals = (Signal.GRAD,)

    with pytest.raises(TypeError, match="the `signals` of grow=.* must be a frozenset, not"):
        replace(METHOD, grow=Listed(None))


@dataclass(frozen=True)
class Secretive:
    """A growth by gradient that does not say so."""

    signals = frozenset()

    def __call__(self, layer, k, ctx):
        return layer.top_inactive(Signal.GRAD, k).positions


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_a_growth_that_reads_what_it_did_not_declare_changes_nothing(store):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = replace(rewire.set_(density=0.5, every=2, until=10), grow=Secretive())
    rewirer = rewire.sparsify(model, optimizer, method, store=store)
    before = [layer.active().clone() for layer in rewirer.layers]
    with pytest.raises(ValueError, match=r"Secretive\(\) reads Signal.GRAD of 0, which it does not declare"):
        train(model, optimizer, 2)
    assert rewirer.history == []
    assert all(torch.equal(layer.active(), old) for layer, old in zip(rewirer.layers, before, strict=True))


def test_what_a_drop_and_an_allocation_may_read():
    @dataclass(frozen=True)
    class Curious:
        of: str
        signals = frozenset({Signal.WEIGHT})
        exact = True

        def most(self, *_arguments):
            return [3, 1]

        def __call__(self, layers, *_arguments):
            return getattr(layers[0], self.of)(*((Signal.GRAD,) if self.of == "read" else (Signal.WEIGHT, 1)))

    with pytest.raises(ValueError, match=r"reads Signal.GRAD of one, which it does not declare .*Signal.WEIGHT"):
        plan(drop=Curious("read"))
    with pytest.raises(ValueError, match="ranks inactive positions of one: a drop reads active weights only"):
        plan(drop=Curious("top_inactive"))
    with pytest.raises(ValueError, match="by Signal.WEIGHT, which is the same for all of them"):
        plan(allocate=Curious("top_inactive"))


def test_a_growth_may_not_rank_more_than_it_grows_and_limits_are_kept():
    @dataclass(frozen=True)
    class Greedy:
        signals = frozenset({Signal.GRAD})

        def __call__(self, layer, k, ctx):
            return layer.top_inactive(Signal.GRAD, 2 * k).largest(k).positions

    with pytest.raises(
        ValueError, match=r"Greedy\(\) reads the 4 largest inactive values .* in one, but it has to grow 2"
    ):
        plan(grow=Greedy())

    class Stingy(InPlace):
        def most(self, dropped, room):
            return [1] * len(dropped)

    method = replace(METHOD, schedule=HALF, allocate=Stingy())
    with pytest.raises(ValueError, match="2 largest inactive values of Signal.GRAD in one, but only 1 were captured"):
        rewire.core.plan_rewiring(method, capture(method, layers(), Context(step=1)), Context(step=1))


@pytest.mark.parametrize("name", list(rewire.METHODS))
def test_no_method_of_the_library_is_refused(name):
    method = replace(rewire.METHODS[name](density=0.6, every=1, until=10), density=Constant(0.6), schedule=HALF)
    assert rewire.core.plan_rewiring(method, layers(), Context(step=1)) is not None


def test_a_wrong_most_is_named_at_the_capture():
    class Short(GlobalTop):
        def most(self, dropped, room):
            return [0]

    method = replace(METHOD, schedule=HALF, allocate=Short())
    with pytest.raises(ValueError, match=r"`most` of allocate=.*Short\(.* must return a list of 2 integers"):
        capture(method, layers(), Context(step=1))
