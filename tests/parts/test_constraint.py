"""Constraints by hand: small layers with the positions written out, and the sentences of what cannot be."""

from dataclasses import replace

import pytest
import torch
from tests.core.test_method import shown
from tests.fakes import ListLayer, _

import rewire
from rewire.core.even import whole_rounds
from rewire.core.layer import Context, LayerSpec
from rewire.core.structure import structure_fault
from rewire.core.tiles import Tiles
from rewire.core.topology import ScoredPositions
from rewire.parts import NM, Blocks, Channels, Constant, FanIn, Mix, Periodic, Strongest


class Matrix(ListLayer):
    """A layer of rows that are written out."""

    def __init__(self, rows, grad=None, name="layer", frozen=False):
        flat = [value for row in rows for value in row]
        super().__init__(flat, None if grad is None else [g for row in grad for g in row], name=name, frozen=frozen)
        self.spec = LayerSpec(name, torch.Size([len(rows), len(rows[0])]))


def plan(name, layers, constraint, density, fraction=0.5, **changes):
    method = rewire.METHODS[name](density=density, every=1, until=100)
    method = replace(
        method,
        density=Constant(density),
        schedule=Periodic(1, None, Constant(fraction)),
        constraint=constraint,
        **changes,
    )
    return shown(rewire.core.plan_rewiring(method, layers, Context(step=1)))


def test_tiles_number_boxes_row_by_row():
    tiles = Tiles((4, 4, 1), (2, 2, 1))
    assert tiles.of(torch.arange(16)).tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3]
    assert tiles.positions(torch.tensor([0, 3])).tolist() == [0, 1, 4, 5, 10, 11, 14, 15]
    assert tiles.means(torch.tensor([4.0, 8.0]), torch.tensor([0, 15])).tolist() == [1.0, 0.0, 0.0, 2.0]


def test_tiles_of_a_convolution_have_one_tap_or_all():
    inputs = Tiles((2, 4, 3), (1, 2, 1))  # pairs of input channels, tap by tap
    assert inputs.of(torch.arange(12)).tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    assert inputs.positions(torch.tensor([1])).tolist() == [1, 4]
    outputs = Tiles((2, 4, 3), (1, 4, 3))
    assert outputs.of(torch.arange(24)).tolist() == [0] * 12 + [1] * 12


def test_the_largest_of_each_tile():
    top = ScoredPositions(torch.tensor([1.0, 3.0, 2.0, 3.0, 5.0, 4.0]), torch.tensor([0, 1, 2, 3, 4, 5]))
    tiles = Tiles((1, 8, 1), (1, 4, 1))
    # The first tile may keep two of 1 3 2 3; of equal ones the first. The second may keep one of 5 4.
    assert tiles.largest(top, torch.tensor([2, 1])).positions.tolist() == [1, 3, 4]
    assert tiles.largest(top, torch.tensor([1, 0])).positions.tolist() == [1]


def test_rigl_under_2_4_swaps_within_full_groups():
    layer = Matrix(
        [[0.5, _, 0.1, _, 0.9, 0.8, _, _]],
        grad=[[0, 3, 0, 4, 0, 0, 9, 8]],
    )
    # Two of four go: 0.1 (position 2) and 0.5 (0). The largest gradients, 9 and 8, are in the group that is full.
    # The first group has room for two: 4 (position 3) and 3 (position 1).
    assert plan("rigl", [layer], NM(2, 4), 0.5) == [([0, 2], [1, 3])]


def test_rigl_under_1_4_takes_the_largest_of_each_group():
    layer = Matrix(
        [[0.1, _, _, _, _, _, _, _]],
        grad=[[0, 1, 2, 3, 9, 8, 7, 0]],
    )
    # Two weights are allowed, at most one in each group: 9 (position 4), not 8, in the second group.
    assert plan("rigl", [layer], NM(1, 4), 0.25) == [([], [4])]


def test_ggr_under_2_4_counts_only_what_can_be_grown_together():
    layers = [
        Matrix([[0.5, 0.1, _, _, 0.4, _, _, _]], grad=[[0, 0, 6, 5, 0, 2, 1, 0]]),
        Matrix([[0.9, 0.3, _, _, 0.7, _, _, _]], grad=[[0, 0, 9, 8, 0, 7, 6.5, 0]]),
    ]
    # A third of six goes: 0.1 (position 1) and 0.3 (position 1). Every group has room for one more.
    # Its best candidates: 6 and 2 in the first layer, 9 and 7 in the second; the two largest are in the second layer.
    method = {"grow": Strongest(), "fraction": 1 / 3}
    assert plan("ggr", layers, NM(2, 4), 3 / 8, **method) == [([1], []), ([1], [2, 5])]
    # Without the constraint: 9, 8 in the second layer.
    assert plan("ggr", layers, None, 3 / 8, **method) == [([1], []), ([1], [2, 3])]


def test_random_growth_respects_groups_and_reaches_every_place():
    seen = set()
    for seed in range(200):
        layer = Matrix([[0.5, 0.1, _, _, 0.4, _, _, _]], grad=[[0, 0, 3, 0, 0, 0, 0, 0]])
        method = replace(rewire.ggr(density=0.5, every=1, until=9), constraint=NM(2, 4), grow=Mix())
        method = replace(method, density=Constant(0.5), schedule=Periodic(1, None, Constant(1 / 4)))
        (edit,) = rewire.core.plan_rewiring(method, [layer], Context(step=1, seed=seed))
        # 0.1 goes; 2 grow in all: by gradient position 2, which fills the first group; the other in the second.
        assert edit.drop.tolist() == [1]
        assert edit.grow[0] == 2
        seen.add(int(edit.grow[1]))
    assert seen == {5, 6, 7}


def test_blocks_are_dropped_and_grown_by_their_mean():
    layer = Matrix(
        [
            [0.9, 0.9, 0.1, 0.3, _, _],
            [0.9, 0.9, 0.1, 0.3, _, _],
            [_, _, _, _, 0.5, 0.5],
            [_, _, _, _, 0.5, 0.5],
        ],
        grad=[
            [0, 0, 1, 1, 4, 0],
            [0, 0, 1, 1, 0, 0],
            [3, 3, 2, 2, 0, 0],
            [0, 0, 2, 2, 0, 0],
        ],
    )
    # Means of the three blocks that exist: 0.9, 0.2, 0.5; a third goes: block 1, positions 2 3 8 9.
    # Mean gradients of the others: 1 (block 1, which just went), 1 (block 2), 1.5 (block 3), 2 (block 4).
    assert plan("rigl", [layer], Blocks(2), 0.5, 1 / 3) == [([2, 3, 8, 9], [14, 15, 20, 21])]


def test_ggr_moves_blocks_between_layers():
    layers = [
        Matrix([[0.1, 0.1, _, _], [0.1, 0.1, _, _]], grad=[[0, 0, 1, 1], [0, 0, 1, 1]]),
        Matrix([[0.9, 0.9, 0.2, 0.2, _, _], [0.9, 0.9, 0.2, 0.2, _, _]], grad=[[0, 0, 0, 0, 3, 0], [0, 0, 0, 0, 3, 0]]),
    ]
    # Three blocks of five exist. One goes: the share of the second layer is larger, its lowest is 0.2. The missing
    # blocks have mean gradients 1 and 1.5: the second layer gets it.
    assert plan("ggr", layers, Blocks(2), 0.6, 1 / 3, grow=Strongest()) == [
        ([], []),
        ([2, 3, 8, 9], [4, 5, 10, 11]),
    ]


def test_whole_channels_move():
    layers = [
        Matrix([[0.4, 0.6], [0.1, 0.1], [_, _]], grad=[[0, 0], [0, 0], [2, 4]]),
        Matrix([[0.5, 0.5], [_, _], [0.9, 0.9]], grad=[[0, 0], [9, 1], [0, 0]]),
    ]
    # Half of the four channels go, the lowest of each layer. Missing means: 3 and, just dropped, 0 | 5 and 0.
    assert plan("ggr", layers, Channels(), 2 / 3, grow=Strongest()) == [([2, 3], [4, 5]), ([0, 1], [2, 3])]


def test_constant_fan_in_regrows_what_each_row_has_lost():
    layer = Matrix(
        [[0.1, 0.2, _, _], [0.9, 0.8, _, _]],
        grad=[[0, 0, 1, 2], [0, 0, 8, 9]],
    )
    # Half of the four go, both in the first row. It regrows two by gradient, although those of the second are larger.
    assert plan("rigl", [layer], FanIn(), 0.5) == [([0, 1], [2, 3])]


def test_blocks_of_a_transposed_layer_have_rows_of_outputs_too():
    spec = LayerSpec("layer", torch.Size([2, 4]), transposed=True)  # two inputs, four outputs
    # Blocks of two outputs and one input: in each row, positions 0 1 and 2 3.
    assert Blocks(2, 1).tiles(spec).of(torch.arange(8)).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(ValueError, match="layer is a matrix of 4 x 2, which blocks of 2 x 4 do not divide"):
        Blocks(2, 4).tiles(spec)


def test_ggr_moves_whole_rounds_of_fan_in_between_layers():
    layers = [
        Matrix([[0.1, 0.3, _], [0.4, 0.2, _]], grad=[[0, 0, 0.1], [0, 0, 0.1]]),
        Matrix([[0.9, _, _], [0.8, _, _]], grad=[[0, 5, 6], [0, 7, 8]]),
    ]
    # A third of six goes: 0.1, of the first layer (2 x 2/3 of 2 = 1), and 0.8 of the second. The two largest missing
    # gradients are in the second layer, which then has 3 of 6: one round of two, and a half. The first has 3: the same.
    # One whole round is left over; both miss half a round, so the first layer in the order gets it.
    # Each layer keeps its weights: its first row regrows position 2 by gradient, its second row position 5.
    assert plan("ggr", layers, FanIn(), 0.5, 1 / 3, grow=Strongest()) == [([0], [2]), ([3], [5])]
    # Two thirds go: 0.1, 0.2 and 0.3 of the first layer, and 0.8. All four largest missing gradients are in the second
    # layer, which then has 5 of 6: two rounds. The first has one weight, and needs two: one round.
    # Its first row regrows position 2; in the second layer the first row grows 6 (position 2), the other 8 and 7.
    assert plan("ggr", layers, FanIn(), 0.5, 2 / 3, grow=Strongest()) == [([0, 1, 4], [2]), ([3], [2, 4, 5])]


def test_srigl_empties_rows_without_salient_weights():
    layer = Matrix(
        [[0.1, 0.2, _, _, _, _], [0.9, 0.8, _, _, _, _], [0.7, 0.6, _, _, _, _]],
        grad=[[0, 0, 0, 0, 0, 0], [0, 0, 5, 4, 3, 1], [0, 0, 9, 2, 1, 7]],
    )
    # A third of six goes: 0.1 and 0.2. Salient: the four others, and the gradients 9 and 7. The first row has none of
    # the two that each row has: it is emptied. Six weights for two rows: three each.
    edits = plan("srigl", [layer], FanIn(least_salient=0.5), 1 / 3, 1 / 3)
    assert edits == [([0, 1], [8, 14])]  # 5 in the second row, 9 in the third
    # With a lower threshold than nothing at all, the row stays, and grows at random where no gradient is.
    ((dropped, grown),) = plan("srigl", [layer], FanIn(), 1 / 3, 1 / 3)
    assert dropped == [0, 1]
    assert len(grown) == 2
    assert max(grown) < 6


def test_a_row_that_was_emptied_stays_empty():
    layer = Matrix([[_, _, _], [0.9, 0.8, _]], grad=[[9, 9, 9], [0, 0, 1]])
    assert plan("srigl", [layer], FanIn(least_salient=0.5), 1 / 3) == [([4], [5])]


def test_fan_in_falls_with_the_density():
    layer = Matrix([[0.1, 0.2, 0.3], [0.9, 0.8, 0.7]])
    # Four of six are allowed: two for each row. The lowest two, 0.1 and 0.2, are both in the first: it regrows one, and
    # the second loses 0.7.
    ((dropped, grown),) = plan("set", [layer], FanIn(), 4 / 6, 0.0)
    assert dropped == [0, 1, 5]
    assert len(grown) == 1
    assert grown[0] in (0, 1)


def test_rounds():
    assert whole_rounds([4, 4], [2, 2], [9, 9]) == [2, 2]
    assert whole_rounds([5, 5], [2, 2], [9, 9]) == [3, 2]  # one round of two is left: of equal ones the first
    assert whole_rounds([5, 5], [2, 3], [2, 9]) == [2, 2]
    assert whole_rounds([9, 1], [3, 2], [9, 9]) == [2, 2]  # the second needs one; then the rest fits there
    with pytest.raises(ValueError, match="3 weights are not enough for one in each of 4 tiles"):
        whole_rounds([2, 1], [2, 2], [5, 5])


def test_what_violates_a_constraint_is_named():
    layer = Matrix([[0.5, 0.1, 0.3, _], [_, 0.1, _, _]])
    assert structure_fault(NM(3, 4), layer) is None
    assert structure_fault(NM(2, 4), layer) == (
        "1 of 2 tiles violate NM(n=2, m=4): tile 0 has 3 weights where 2 are allowed"
    )
    assert "tile 1 has 1 weights where others have 3" in structure_fault(FanIn(), layer)
    assert "tile 0 has 3 weights where all 4 or none exist" in structure_fault(Blocks(2), layer)


def test_a_growth_that_ignores_the_constraint_is_named():
    class Careless(Strongest):
        def __call__(self, layer, k, ctx):
            return layer.base.top_inactive(self.signal, k).positions

    layer = Matrix([[_, _, _, _, 0.9, _, _, _]], grad=[[9, 8, 7, 6, 0, 1, 1, 1]])
    with pytest.raises(ValueError, match="puts 3 weights into tile 0 of layer, which has room for 2 under NM"):
        plan("rigl", [layer], NM(2, 4), 0.5, grow=Careless())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: NM(3, 2), "n=3 must not exceed m=2"),
        (lambda: NM(0, 4), "n of N:M must be a whole number of at least 1, not 0"),
        (lambda: NM(1, 2.5), "m of N:M must be a whole number of at least 1, not 2.5"),
        (lambda: Blocks(0), "rows of a block must be a whole number of at least 1, not 0"),
        (lambda: FanIn("most"), "least_salient is a share and must lie in"),
        (lambda: FanIn(1.5), "least_salient is a share and must lie in"),
        (lambda: rewire.deepr(density=0.1, constraint=Blocks(2)), "reads the signs of single weights"),
        (lambda: rewire.ggr(density=0.1, every=1, until=2, sample=1.0, constraint=NM(2, 4)), "leave sample out"),
    ],
)
def test_wrong_constraints_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_constraint_must_be_one():
    with pytest.raises(TypeError, match="an instance, not the class FanIn: call it"):
        rewire.set_(density=0.1, every=1, until=2, constraint=FanIn)
    with pytest.raises(TypeError, match="constraint='2:4' has no `tiles`"):
        rewire.set_(density=0.1, every=1, until=2, constraint="2:4")


def test_the_repr_of_a_method_without_a_constraint_is_as_it_was():
    assert "constraint" not in repr(rewire.ggr(density=0.1, every=1, until=9))
    assert repr(rewire.ggr(density=0.1, every=1, until=9, constraint=NM(2, 4))).endswith("constraint=NM(n=2, m=4))")
