"""Every method under every constraint that admits it, in both stores: exact at every step, also after a resume."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.networks import cnn, mlp, train
from tests.parts.test_constraint import Matrix

import rewire
from rewire.core.layer import Context
from rewire.core.structure import tile_fault
from rewire.parts import NM, Blocks, Channels, Constant, FanIn, Periodic

CONSTRAINTS = [NM(2, 4), NM(1, 2), FanIn(), FanIn(0.5), Blocks(4), Blocks(2, 4), Channels()]
BEGIN_DENSE = ("gmp", "acdc")  # N:M admits no dense network

pytestmark = pytest.mark.filterwarnings("ignore:no signal passes")  # few blocks in a small network


def admitted(name, constraint, store):
    return not (
        (isinstance(constraint, NM) and name in BEGIN_DENSE)
        or (constraint.whole and name in ("deepr", "chts"))
        or (store == "packed" and name == "snfs")
    )


def units(rewirer):
    """How many tiles exist, or weights where tiles are not whole."""
    constraint = rewirer.method.constraint
    sizes = [constraint.tiles(layer.spec).size if constraint.whole else 1 for layer in rewirer.layers]
    counts = [
        constraint.tiles(layer.spec).count if constraint.whole else layer.shape.numel() for layer in rewirer.layers
    ]
    return sum(layer.nnz // size for layer, size in zip(rewirer.layers, sizes, strict=True)), sum(counts)


@pytest.mark.parametrize("store", ["masked", "packed"])
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=repr)
@pytest.mark.parametrize("name", list(rewire.METHODS))
def test_exact_at_every_step(name, constraint, store):
    if not admitted(name, constraint, store):
        pytest.skip("refused, as other tests show")
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method = rewire.METHODS[name](density=0.25, every=2, until=8, fraction=0.3, constraint=constraint)
    rewirer = rewire.sparsify(model, optimizer, method, store=store)

    def after(step):
        rewirer.check()
        existing, total = units(rewirer)
        due = round(method.density(step + 1) * total)
        if method.schedule(step + 1) is not None:
            missing = due - existing
            revives = name == "acdc" and constraint == FanIn(0.5)  # emptied neurons stay empty in dense phases
            assert missing == 0 if not constraint.even else 0 <= missing < (total if revives else 16)

    train(model, optimizer, 10, after=after)


@pytest.mark.parametrize("store", ["masked", "packed"])
@pytest.mark.parametrize("constraint", [NM(2, 4), FanIn(), Blocks(2), Channels()], ids=repr)
def test_convolutions(constraint, store):
    model = cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    method = rewire.ggr(density=0.3, every=2, until=8, fraction=0.3, constraint=constraint)
    rewirer = rewire.sparsify(model, optimizer, method, store=store, exclude=["0"])
    densities = [[layer.nnz for layer in rewirer.layers]]
    train(model, optimizer, 9, shape=(3, 6, 6), after=lambda _step: rewirer.check())
    densities.append([layer.nnz for layer in rewirer.layers])
    assert len(rewirer.history) >= 2  # the last one may move less than a channel
    assert densities[0] != densities[1]  # GGR moves the budgets of layers


@pytest.mark.parametrize("store", ["masked", "packed"])
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=repr)
def test_resume(constraint, store):
    def build():
        model = mlp(dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        method = rewire.ggr(density=0.25, every=2, until=100, fraction=0.3, constraint=constraint)
        return model, optimizer, rewire.sparsify(model, optimizer, method, store=store)

    model, optimizer, rewirer = build()
    train(model, optimizer, 5, dtype=torch.float64)
    states = [copy.deepcopy(one.state_dict()) for one in (model, optimizer, rewirer)]
    again = build()
    for one, state in zip(again, states, strict=True):
        one.load_state_dict(state)
    train(model, optimizer, 6, begin=5, dtype=torch.float64)
    train(again[0], again[1], 6, begin=5, dtype=torch.float64)
    for one, other in zip(rewirer.layers, again[2].layers, strict=True):
        assert torch.equal(one.active(), other.active())
        assert torch.equal(one.parameter, other.parameter)


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=repr)
def test_masked_and_packed_rewire_alike(constraint):
    found = []
    for store in ("masked", "packed"):
        model = mlp(dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        method = rewire.ggr(density=0.25, every=2, until=100, fraction=0.3, constraint=constraint)
        rewirer = rewire.sparsify(model, optimizer, method, store=store)
        train(model, optimizer, 9, dtype=torch.float64)
        found.append([layer.active().tolist() for layer in rewirer.layers])
    assert found[0] == found[1]


@pytest.mark.parametrize("start", ["erk", "uniform", "connected-erk", "magnitude", "magnitude-network"])
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=repr)
def test_every_start_is_fitted(constraint, start):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.25, start=start, constraint=constraint))
    rewirer.check()
    existing, total = units(rewirer)
    assert existing == round(0.25 * total) or (constraint.even and existing <= round(0.25 * total))


def test_a_magnitude_start_keeps_the_largest_of_each_group():
    model = torch.nn.Sequential(torch.nn.Linear(8, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.1, 0.2, 0.3, 0.4]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.5, start="magnitude", constraint=NM(2, 4)))
    # The four largest are all in the first group, which keeps two; the second is filled with its largest.
    assert rewirer.layers[0].active().tolist() == [0, 1, 6, 7]


def test_a_given_topology_must_satisfy_the_constraint():
    mask = torch.tensor([[True, True, True, False]])
    for topology, fits in ((mask, False), (mask.logical_xor(torch.tensor([[True, False, False, False]])), True)):
        model = torch.nn.Sequential(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        density = float(topology.float().mean())
        method = rewire.static(density=density, start={"0": topology}, constraint=NM(2, 4))
        if fits:
            rewire.sparsify(model, optimizer, method).check()
        else:
            with pytest.raises(ValueError, match="density 0.75 asks for 3 weights, and NM"):
                rewire.sparsify(model, optimizer, method)


@pytest.mark.parametrize("given", ["nonzero", "model", "masks"])
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=repr)
def test_a_trained_topology_is_a_start_again(constraint, given):
    """Also if neurons were emptied, or channels of different sizes moved between layers."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = rewire.ggr(density=0.3, every=2, until=8, fraction=0.4, constraint=constraint)
    rewirer = rewire.sparsify(model, optimizer, method)
    train(model, optimizer, 9)
    topology = [layer.active().tolist() for layer in rewirer.layers]
    if constraint == FanIn(0.5):
        assert any(bool((layer.mask.sum(1) == 0).any()) for layer in rewirer.layers)
    masks = {layer.name: layer.mask.clone() for layer in rewirer.layers}
    existing, total = units(rewirer)
    rewirer.remove()
    start = {"nonzero": "nonzero", "model": model, "masks": masks}[given]
    model = model if given == "nonzero" else mlp(seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = rewire.ggr(density=existing / total, every=2, until=8, constraint=constraint, start=start)
    again = rewire.sparsify(model, optimizer, method)
    assert [layer.active().tolist() for layer in again.layers] == topology
    train(model, optimizer, 3, after=lambda _step: again.check())


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ([[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]], "gives for 0 does not fit: 2 of 3 tiles violate Channels"),
        ([[1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]], "gives 2 of the 3 tiles of Channels.* allows 1: pass density=0.7"),
    ],
)
def test_given_channels_must_be_whole_and_as_many_as_the_density_allows(start, message):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = rewire.static(density=1 / 3, start={"0": torch.tensor(start).bool()}, constraint=Channels())
    with pytest.raises(ValueError, match=message):
        rewire.sparsify(model, optimizer, method)


@pytest.mark.parametrize(
    ("constraint", "density", "message"),
    [
        (NM(2, 5), 0.2, "each output of 0 has 12 inputs, which groups of 5 do not divide"),
        (NM(1, 4), 0.3, "density 0.3 asks for 154 weights, and NM.n=1, m=4. admits 128 of 512: .* at most 0.25"),
        (Blocks(8), 0.3, "0 is a matrix of 16 x 12, which blocks of 8 x 8 do not divide"),
        (Blocks(4), 0.05, "density 0.05 leaves 2 where Blocks.* needs 3"),
        (FanIn(), 0.05, "density 0.05 leaves 26 where FanIn.* needs 36 .every one of 36 outputs needs a weight"),
    ],
)
def test_what_cannot_be_satisfied_is_named(constraint, density, message):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=message):
        rewire.sparsify(model, optimizer, rewire.rigl(density=density, every=1, until=9, constraint=constraint))


@pytest.mark.parametrize("constraint", [None, FanIn(), Channels()], ids=repr)
def test_the_density_that_the_error_names_is_enough(constraint):
    for inputs, outputs in ((9, 7), (33, 27), (40, 31)):
        model = torch.nn.Sequential(torch.nn.Linear(inputs, outputs), torch.nn.Linear(outputs, 7))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match="density must be at least") as caught:
            rewire.sparsify(model, optimizer, rewire.static(density=1e-4, constraint=constraint))
        density = float(str(caught.value).rpartition(" ")[2])
        rewire.sparsify(model, optimizer, rewire.static(density=density, constraint=constraint)).check()


@pytest.mark.parametrize("constraint", [Blocks(2), Channels()], ids=repr)
def test_paths_of_single_links_are_refused_under_whole_tiles(constraint):
    with pytest.raises(ValueError, match="follows the links of single neurons, and under .* weights exist together"):
        rewire.chts(density=0.3, every=1, until=9, constraint=constraint)


def test_check_finds_a_broken_constraint():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.5, start="uniform", constraint=NM(2, 4)))
    row = model[0].weight_mask[0]
    row[:4] = True  # four of four
    with pytest.raises(RuntimeError, match=r"0: 1 of 48 tiles violate NM\(n=2, m=4\): tile 0 has 4 weights"):
        rewirer.check()


@st.composite
def networks(draw):
    """Layers of random rows that satisfy a constraint, with random weights and gradients."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    constraint = draw(st.sampled_from([NM(1, 2), NM(2, 4), NM(3, 4), FanIn(), FanIn(0.4)]))
    layers = []
    for index in range(draw(st.integers(1, 3))):
        rows, columns = draw(st.integers(1, 5)), 4 * draw(st.integers(1, 3))
        weight, grad = torch.rand(rows, columns, generator=generator), torch.randn(rows, columns, generator=generator)
        keys = torch.rand(rows, columns, generator=generator)
        if constraint.even:
            keep = keys.argsort(1).argsort(1) < draw(st.integers(1, columns))
        else:
            groups = keys.view(rows, -1, constraint.m)
            keep = (groups.argsort(2).argsort(2) < constraint.n).view(rows, columns)
            keep &= torch.rand(rows, columns, generator=generator) < draw(st.sampled_from([0.3, 1.0]))
            keep[0, 0] |= not keep.any()
        values = [
            [float(w) if k else None for w, k in zip(*row, strict=True)] for row in zip(weight, keep, strict=True)
        ]
        grad[torch.rand(rows, columns, generator=generator) < draw(st.sampled_from([0.0, 0.7]))] = 0
        layers.append(Matrix(values, grad.tolist(), name=f"layer {index}"))
    return constraint, layers


@settings(deadline=None, max_examples=100)
@given(
    networks(),
    st.sampled_from(sorted(set(rewire.METHODS) - {"static"})),
    st.floats(0.0, 1.0),
    st.sampled_from([0.4, 0.8, 1.0, 1.0, 1.3, 2.0]),
)
def test_any_rewiring_of_any_method_keeps_n_m_and_fan_in(network, name, fraction, change):
    """Also where the density falls or rises at the same time."""
    constraint, layers = network
    tiles = [constraint.tiles(layer.spec) for layer in layers]
    total, nnz = sum(len(layer.span) for layer in layers), sum(layer.nnz for layer in layers)
    fewest = sum(one.count for one in tiles) if constraint.even else len(layers)
    most = sum(one.count * (constraint.limit or one.size) for one in tiles)
    method = rewire.METHODS[name](density=0.1, every=1, until=100, constraint=constraint)
    assume(change >= 1 or method.drop.exact)
    budget = min(max(round(change * nnz), fewest), most)
    method = replace(method, density=Constant(budget / total), schedule=Periodic(1, None, Constant(fraction)))
    edits = rewire.core.plan_rewiring(method, layers, Context(step=1))
    counts = []
    for layer, cut, edit in zip(layers, tiles, edits, strict=True):
        positions = sorted((set(layer.active().tolist()) - set(edit.drop.tolist())) | set(edit.grow.tolist()))
        assert tile_fault(constraint, cut, torch.tensor(positions, dtype=torch.int64)) is None
        assert len(edit.grow) == len(edit.value)
        counts.append(cut.counts(torch.tensor(positions, dtype=torch.int64)))
    missing = budget - sum(int(one.sum()) for one in counts)
    assert missing >= 0
    assert missing == 0 or constraint.even
    for count, cut in zip(counts, tiles, strict=True):  # no layer could have one more weight for each of its outputs
        assert missing < int((count > 0).sum()) or int(count.max()) == cut.size
