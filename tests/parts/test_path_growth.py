"""CHTs by hand: scores of missing links, soft drops, neurons that lead nowhere."""

import itertools

import pytest
import torch
from tests.core.test_method import shown
from tests.fakes import ListLayer, _
from tests.networks import cnn, mlp, train

import rewire
from rewire.core.layer import Context, LayerSpec
from rewire.core.views import Edited
from rewire.parts import Constant, Lowest, Percolated, ShortPaths, SoftLowest
from rewire.parts.path_growth import ch3_l3


class Matrix(ListLayer):
    def __init__(self, rows, name="layer"):
        super().__init__([value for row in rows for value in row], name=name)
        self.shape = torch.Size([len(rows), len(rows[0])])
        self.spec = LayerSpec(name, self.shape)


def by_hand(links):
    """Every path u - b - a - v of three links, one after the other."""
    rows, columns = links.shape
    scores = torch.zeros(rows, columns, dtype=torch.float64)
    for u, v in itertools.product(range(rows), range(columns)):
        for b, a in itertools.product(range(columns), range(rows)):
            if links[u, v] or not (links[u, b] and links[a, b] and links[a, v]):
                continue
            leaving_a = sum(bool(links[a, c]) and c != v and not links[u, c] for c in range(columns))
            leaving_b = sum(bool(links[r, b]) and r != u and not links[r, v] for r in range(rows))
            scores[u, v] += 1 / ((1 + leaving_a) * (1 + leaving_b)) ** 0.5
    return scores


def test_one_path():
    # u0 - v0 - u1 - v1: neither v0 nor u1 has a link that leaves the community.
    assert ch3_l3(torch.tensor([[1, 0], [1, 1]], dtype=torch.bool)).tolist() == [[0, 1], [0, 0]]
    # A third column at u1: one link leaves, for either missing link of u0. A third row at v0: one more.
    scores = ch3_l3(torch.tensor([[1, 0, 0], [1, 1, 1], [1, 0, 0]], dtype=torch.bool))
    torch.testing.assert_close(scores, torch.tensor([[0, 0.5, 0.5], [0, 0, 0], [0, 0.5, 0.5]], dtype=torch.float64))


@pytest.mark.parametrize("seed", range(6))
def test_the_matrix_products_count_every_path(seed):
    links = torch.rand(5, 6, generator=torch.Generator().manual_seed(seed)) < 0.4
    torch.testing.assert_close(ch3_l3(links), by_hand(links))


def test_links_are_drawn_in_proportion_to_their_scores():
    rows = [[1.0, _, _, _], [1.0, 1.0, _, _], [_, _, 1.0, 1.0]]
    edited = Edited(Matrix(rows), torch.tensor([], dtype=torch.int64), 0)
    # The only path of three links is from u0 to v1 (position 1).
    for seed in range(20):
        assert ShortPaths()(edited, 1, Context(seed=seed)).tolist() == [1]
    two = {tuple(ShortPaths()(edited, 2, Context(seed=seed)).tolist()) for seed in range(60)}
    assert {one[0] for one in two} <= {1}  # the other is drawn at random
    assert {one[1] for one in two} == {2, 3, 6, 7, 8, 9}


def test_the_rigid_rule_takes_the_largest():
    links = torch.rand(6, 7, generator=torch.Generator().manual_seed(0)) < 0.4
    rows = [[1.0 if one else _ for one in row] for row in links.tolist()]
    edited = Edited(Matrix(rows), torch.tensor([], dtype=torch.int64), 0)
    best = by_hand(links).flatten().topk(3).indices.sort().values
    assert by_hand(links).flatten()[ShortPaths(soft=False)(edited, 3, Context())].tolist() == pytest.approx(
        by_hand(links).flatten()[best].tolist()
    )


def test_a_soft_drop_keeps_weights_in_proportion():
    layer = ListLayer([3.0, 1.0])
    kept = [SoftLowest()([layer], 1, Context(seed=seed))[0].tolist() for seed in range(2000)]
    assert kept.count([1]) / 2000 == pytest.approx(3 / 4, abs=0.04)  # the 3 is kept three times out of four
    sharp = SoftLowest(sharpness=Constant(3.0))
    kept = [sharp([layer], 1, Context(seed=seed))[0].tolist() for seed in range(2000)]
    assert kept.count([1]) / 2000 == pytest.approx(27 / 28, abs=0.02)


def test_neurons_that_lead_nowhere_lose_their_weights():
    first = Matrix([[0.9, 0.8], [0.7, _], [_, 0.1]], name="a")  # three neurons, two inputs
    second = Matrix([[0.6, _, 0.5], [_, 0.2, _]], name="b")
    # The drop takes 0.1 and 0.2. The third neuron has no input then, and the second no output:
    # 0.7 leads to the second, and 0.5 comes from the third.
    drop = Percolated(Lowest(scope="network"), ("a", "b"))
    assert [one.tolist() for one in drop([first, second], 2, Context())] == [[2, 5], [2, 4]]


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_a_training(store):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method = rewire.chts(density=0.2, every=2, until=12, initial=0.5, chain=["0", "2", "4"])
    rewirer = rewire.sparsify(model, optimizer, method, store=store)
    seen = []
    train(model, optimizer, 14, after=lambda _step: (rewirer.check(), seen.append(rewirer.nnz)))
    assert seen[0] == 256
    assert seen[-1] == round(0.2 * 512)
    assert seen == sorted(seen, reverse=True)


def test_what_is_refused():
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="0 has shape .8, 3, 3, 3.: ShortPaths.*a convolution shares its weights"):
        rewire.sparsify(model, optimizer, rewire.chts(density=0.2, every=2, until=12))
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for chain, message in (
        (["4", "0"], "4 has 4 outputs and 0, the next in the chain, 12 inputs"),
        (["x"], "the chain names"),
        (["2", "2"], "names '2' twice: name each layer once"),
    ):
        with pytest.raises(ValueError, match=message):
            rewire.sparsify(model, optimizer, rewire.chts(density=0.2, every=2, until=12, chain=chain))


def test_a_sharpness_is_a_curve_that_keeps_the_larger():
    with pytest.raises(TypeError, match=r"sharpness must be a curve such as Constant\(2.0\), not 2.0"):
        SoftLowest(sharpness=2.0)
    with pytest.raises(ValueError, match="sharpness must be at least 0"):
        SoftLowest(sharpness=Constant(-1.0))


def test_a_method_of_one_vector_still_rewires():
    method = rewire.chts(density=0.5, every=1, until=9, fraction=0.5)
    ((dropped, grown),) = shown(rewire.core.plan_rewiring(method, [ListLayer([0.5, _, 0.1, _])], Context(step=1)))
    assert len(dropped) == len(grown) == 1
