"""Starts that keep weights that exist: by hand, in both stores, and on a network that is trained."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from tests.networks import cnn, mlp, train
from torch import nn, tensor

import rewire
from rewire.core import LayerSpec
from rewire.core.layer import Context
from rewire.parts import ErdosRenyiKernel, Explicit, Given, Magnitude, Nonzero, Scattered, Uniform
from rewire.parts.start import start_from

SPECS = [LayerSpec("one", torch.Size([2, 3])), LayerSpec("two", torch.Size([2, 2]))]
WEIGHTS = [tensor([[0.1, -0.9, 0.0], [0.2, 0.0, 0.1]]), tensor([[0.01, 0.0], [-0.03, 0.02]])]
STORES = ["masked", "packed"]


def place(start, n, weights=WEIGHTS):
    return [one.tolist() for one in start(SPECS, n, Context(weights=weights))]


def topology(rewirer):
    return [layer.active().tolist() for layer in rewirer.layers]


def sparse(model, method, store="masked"):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return optimizer, rewire.sparsify(model, optimizer, method, store=store)


def test_magnitude_by_a_rule_takes_the_largest_of_each_layer():
    # Uniform: 3 of 6 and 2 of 4. Of the two weights of 0.1 the first is taken.
    assert place(Magnitude(Uniform()), 5) == [[0, 1, 3], [2, 3]]


def test_magnitude_network_wide_takes_the_largest_but_one_of_every_layer():
    assert place(Magnitude(), 4) == [[0, 1, 3], [2]]
    assert place(Magnitude(), 5) == [[0, 1, 3, 5], [2]]
    assert place(Magnitude(), 2) == [[1], [2]]


def test_the_names_of_starts():
    assert start_from("magnitude") == start_from("magnitude-erk") == Magnitude(ErdosRenyiKernel())
    assert start_from("magnitude-network") == Magnitude()
    assert start_from("nonzero") == Nonzero()
    assert start_from({"one": 0.5}) == Scattered(Explicit({"one": 0.5}))
    assert start_from({"one": tensor(0.5)}) == Scattered(Explicit({"one": 0.5}))


def test_nonzero_needs_the_density_that_fits():
    assert place(Nonzero(), 7) == [[0, 1, 3, 5], [0, 2, 3]]
    with pytest.raises(
        ValueError, match=r"7 of 10 of the model's weights are not zero, but .* allows 5: pass density=0.7"
    ):
        place(Nonzero(), 5)


def test_masks_and_positions_by_name():
    given = {"one": tensor([[True, False, False], [False, True, True]]), "two": tensor([3, 0], dtype=torch.int32)}
    assert place(start_from(given), 5) == [[0, 4, 5], [0, 3]]
    assert place(start_from({f"{name}.weight": value for name, value in given.items()}), 5) == [[0, 4, 5], [0, 3]]
    assert Given(given) == Given(dict(reversed(given.items())))
    assert Given(given) != Given(given | {"two": tensor([0, 2])})
    assert hash(Given(given)) == hash(Given(given))


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        ({"one": tensor([0])}, ValueError, "gives no topology for two: add it, or leave the layer dense with exclude="),
        (
            {"one": tensor([0]), "two": tensor([0]), "six": tensor([0])},
            ValueError,
            "names six; the sparse layers are one",
        ),
        ({"one": torch.ones(3, 2) > 0, "two": tensor([0])}, ValueError, r"mask of one has shape \(3, 2\), .* \(2, 3\)"),
        (
            {"one": tensor([0, 1]), "two": tensor([0])},
            ValueError,
            "3 of 10 weights are given .* allows 2: .*density=0.3",
        ),
        ({"one": torch.ones(2, 3), "two": tensor([0])}, TypeError, r"a tensor of float32 and shape \(2, 3\) for one"),
        ({"one": tensor([0]), "two": 0.3}, TypeError, "gives 0.3 for two: expected a bool mask, or positions"),
    ],
)
def test_topologies_that_do_not_fit(given, error, sentence):
    with pytest.raises(error, match=sentence):
        place(start_from(given), 2)


def test_positions_that_do_not_fit_are_refused_by_sparsify():
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="for weight: position 6 is not one of the layer's, 0 to 5"):
        sparse(model, rewire.static(density=1 / 3, start={"weight": tensor([1, 6])}))
    with pytest.raises(ValueError, match="for weight: positions must be sorted and distinct, but 1 occurs twice"):
        sparse(model, rewire.static(density=1 / 3, start={"weight": tensor([1, 1])}))


def test_weights_that_cannot_be_read():
    with pytest.raises(ValueError, match=r"start=Nonzero\(\) reads the model's weights: only sparsify can call it"):
        Nonzero()(SPECS, 5, Context())
    with pytest.raises(ValueError, match="one, which is on the meta device"):
        place(Magnitude(), 5, [weight.to("meta") for weight in WEIGHTS])
    with pytest.raises(ValueError, match="of two, and some of them are not finite"):
        place(Magnitude(), 5, [WEIGHTS[0], WEIGHTS[1] / 0])


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("how", ["masked", "packed", "plain", "compiled"])
def test_the_topology_of_another_model(store, how):
    other = cnn()
    _, first = sparse(other, rewire.static(density=0.3), "packed" if how == "packed" else "masked")
    expected, density = topology(first), first.density
    if how == "plain":
        first.remove()
    model = torch.compile(other) if how == "compiled" else other
    for start in (model, {layer.name: layer.mask for layer in first.layers} if not first.removed else model):
        _, second = sparse(cnn(seed=1), rewire.static(density=density, start=start), store)
        assert topology(second) == expected


@pytest.mark.parametrize("store", STORES)
def test_remove_and_sparsify_again_keeps_topology_and_weights(store):
    model = mlp()
    optimizer, rewirer = sparse(model, rewire.ggr(density=0.2, every=3, until=9), store)
    train(model, optimizer, 10)
    before, x = topology(rewirer), torch.randn(5, 12)
    rewirer.remove()
    outputs = model(x)
    _, again = sparse(model, rewire.static(density=0.2, start="nonzero"), store)
    assert topology(again) == before
    assert torch.allclose(model(x), outputs, atol=1e-6)
    assert "start Nonzero()" in repr(again)


def test_a_checkpoint_knows_the_topology_that_was_given():
    masks = {name: torch.rand(shape) < 0.5 for name, shape in (("0", (16, 12)), ("2", (16, 16)), ("4", (4, 16)))}
    density = sum(int(m.sum()) for m in masks.values()) / sum(m.numel() for m in masks.values())
    _, first = sparse(mlp(), rewire.static(density=density, start=masks))
    _, second = sparse(mlp(), rewire.static(density=density, start={k: m.clone() for k, m in masks.items()}))
    second.load_state_dict(first.state_dict())
    _, other = sparse(mlp(), rewire.static(density=density))
    with pytest.raises(ValueError, match="the checkpoint's method differs"):
        other.load_state_dict(first.state_dict())


def trained():
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16.0).float(), torch.tensor(digits.target)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        F.cross_entropy(model(x[:1200]), y[:1200]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, lambda: float((model(x[1200:]).argmax(1) == y[1200:]).float().mean())


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(("start", "keeps"), [("magnitude", True), ("magnitude-network", True), ("erk", False)])
def test_a_trained_network_keeps_its_accuracy_with_the_largest_weights_only(start, keeps, store):
    model, accuracy = trained()
    before = accuracy()
    assert before > 0.88
    _, rewirer = sparse(model, rewire.ggr(density=0.6, every=10, until=100, start=start), store)
    assert rewirer.density == pytest.approx(0.6, abs=1e-4)
    assert (accuracy() > before - 0.02) == keeps
