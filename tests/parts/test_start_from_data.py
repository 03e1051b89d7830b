"""SNIP, GraSP and SynFlow by hand, and that they leave the model as it was."""

import functools

import pytest
import torch
import torch.nn.functional as F
from tests.networks import batch, cnn, mlp, train
from torch import nn, tensor

import rewire
from rewire.core import LayerSpec
from rewire.core.layer import Context
from rewire.parts import Grasp, Magnitude, Shuffled, Snip, SynFlow, Uniform


def network(*weights):
    layers = [nn.Linear(len(w[0]), len(w), bias=False) for w in weights]
    for layer, w in zip(layers, weights, strict=True):
        layer.weight.data = tensor(w)
    return nn.Sequential(*layers)


def place(start, model, n):
    parameters = [layer.weight for layer in model]
    specs = [LayerSpec(str(i), one.shape) for i, one in enumerate(parameters)]
    weights = [one.detach() for one in parameters]
    return [one.tolist() for one in start(specs, n, Context(model=model, parameters=parameters, weights=weights))]


def test_snip_by_hand():
    model = network([[1.0, 2.0], [3.0, -4.0]])
    # loss = sum of W x with x = (1, 1/2): the gradient is x in each row, and |w g| = 1, 1, 3, 2.
    snip = Snip(lambda m: m(tensor([[1.0, 0.5]])).sum())
    assert place(snip, model, 2) == [[2, 3]]
    assert place(snip, model, 3) == [[0, 2, 3]]


def test_grasp_by_hand():
    model = network([[1.0, 2.0], [3.0, -4.0]])
    # loss = |W x|^2 / 2 with x = (1, 1): W x = (3, -1), the gradient (W x) x', times the Hessian x x' twice as much:
    # ((6, 6), (-2, -2)). w times it: 6, 12, -6, 8.
    grasp = Grasp(lambda m: m(torch.ones(1, 2)).square().sum() / 2)
    assert place(grasp, model, 2) == [[1, 3]]
    assert place(grasp, model, 3) == [[0, 1, 3]]


def test_synflow_by_hand():
    model = network([[1.0, -0.5], [2.0, 0.0]], [[-1.0, 3.0], [0.0, 1.0]])
    # Row sums of |W1|: 1.5 and 2; column sums of |W2|: 1 and 4.
    # Scores of W1: 1 x 1, 0.5 x 1, 2 x 4, 0; of W2: 1 x 1.5, 3 x 2, 0, 1 x 2. The four largest: 8, 6, 2, 1.5.
    assert place(SynFlow((2,), rounds=1), model, 4) == [[2], [0, 1, 3]]
    # In two rounds: 6 of 8 first, without the zeros of both. Nothing changes, so the same four are left.
    assert place(SynFlow((2,), rounds=2), model, 4) == [[2], [0, 1, 3]]


def test_synflow_in_rounds_notices_what_is_cut():
    # Two paths: through the first unit 1 + 1 in and 1 out, through the second 1.5 in and 1 out.
    # Scores of W1: 1, 1, 1.5, 0; of W2: 2, 1.5. At once, the best of each layer are 1.5 and 2, which do not meet.
    model = network([[1.0, 1.0], [1.5, 0.0]], [[1.0, 1.0]])
    assert place(SynFlow((2,), rounds=1), model, 2) == [[2], [0]]
    # One by one: without the second 1, the scores of the first path are 1 and 1; it goes, and the other path is left.
    assert place(SynFlow((2,), rounds=100), model, 2) == [[2], [1]]


@pytest.mark.parametrize("start", [Snip, Grasp])
def test_the_rule_decides_how_many_each_layer_gets(start):
    model = network([[1.0, 2.0], [3.0, -4.0]], [[0.1, 0.2], [0.3, 0.4]])
    placed = place(start(lambda m: m(torch.ones(3, 2)).square().sum(), rule=Uniform()), model, 4)
    assert [len(one) for one in placed] == [2, 2]


def test_shuffled_keeps_the_counts_and_not_the_positions():
    model = network([[9.0, 8.0, 7.0, 1.0]] * 8, [[0.1] * 8] * 8)
    straight, shuffled = place(Magnitude(), model, 25), place(Shuffled(Magnitude()), model, 25)
    assert [len(one) for one in straight] == [len(one) for one in shuffled] == [24, 1]
    assert straight[0] != shuffled[0]


def loss(model):
    x, y = batch(0, shape=(3, 6, 6))
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize("store", ["masked", "packed"])
@pytest.mark.parametrize("start", [Snip(loss), Grasp(loss), SynFlow((3, 6, 6)), Shuffled(Snip(loss))])
def test_a_network_starts_and_trains_and_nothing_else_changed(start, store):
    model = nn.Sequential(*cnn(), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewirer = rewire.sparsify(model, optimizer, rewire.rigl(density=0.2, every=3, until=9, start=start), store=store)
    assert rewirer.density == pytest.approx(0.2, abs=1e-3)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(model[1].running_mean, before["1.running_mean"])
    assert torch.equal(model[0].bias, before["0.bias"])
    for layer, name in zip(rewirer.layers, ("0.weight", "3.weight", "6.weight"), strict=True):
        assert torch.equal(layer.read(rewire.core.Signal.WEIGHT), before[name].flatten()[layer.active()])
    train(model, optimizer, 4, shape=(3, 6, 6))


def test_a_start_is_known_by_the_name_of_its_loss():
    assert repr(Snip(loss)) == "Snip('loss', rule=None)"
    assert Snip(loss) == Snip(loss)
    assert Snip(loss) != Snip(lambda model: loss(model))
    assert Grasp(loss, rule=Uniform()) != Grasp(loss)
    with pytest.raises(TypeError, match="has no name that a checkpoint could store"):
        Snip(functools.partial(loss))


def test_losses_and_models_that_do_not_work():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def attach(start):
        return rewire.sparsify(model, optimizer, rewire.static(density=0.5, start=start))

    with pytest.raises(
        ValueError, match=r"Snip\('.*<lambda>', rule=None\) must be one number that depends on the weights"
    ):
        attach(Snip(lambda m: 3.0))
    with pytest.raises(ValueError, match="must be one number that depends on the weights"):
        attach(Snip(lambda m: m(torch.ones(2, 12))))
    with pytest.raises(ValueError, match="are all zero: no signal passes"):
        attach(Snip(lambda m: 0 * m(torch.ones(2, 12)).sum()))
    with pytest.raises(ValueError, match="are not finite"):
        attach(Grasp(lambda m: (m(torch.ones(2, 12)) * float("inf")).sum()))
    with pytest.raises(ValueError, match="SynFlow needs at least one round, not 0"):
        SynFlow((12,), rounds=0)
    with pytest.raises(ValueError, match=r"shape is that of an input without the batch, such as .* not 12"):
        SynFlow(12)
    with pytest.raises(TypeError, match="start must be a part .something to call., not 'erk'"):
        Shuffled("erk")
    with pytest.raises(ValueError, match="runs the model: only sparsify can call it"):
        Snip(loss)([], 3, Context(parameters=[], weights=[]))
