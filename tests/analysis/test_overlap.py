import pytest
import torch
from torch import nn

import rewire
from rewire.analysis.density import densities, masks
from rewire.analysis.flops import positions
from rewire.analysis.overlap import Exploration, Overlap, overlap, unpacked_bits


def test_counting_is_by_topology():
    model = nn.Linear(3, 2)
    model.weight.data = torch.tensor([[1.0, -1, 0], [0, 0, 0]])  # sums to zero, and has an active zero
    model.register_buffer("weight_mask", torch.tensor([[True, True, False], [False, False, True]]))
    (layer,) = densities(model)
    assert (layer.nnz, layer.density, layer.units.empty_neurons) == (3, 0.5, 0)


def test_overlap_by_hand():
    before, after = torch.tensor([1, 1, 1, 0, 0]).bool(), torch.tensor([1, 0, 1, 1, 0]).bool()
    (found,) = overlap({"a": before}, {"a": after}).values()
    assert found == Overlap(before=3, after=3, both=2)
    assert (found.kept, found.jaccard) == (2 / 3, 0.5)
    with pytest.raises(ValueError, match="different models: they differ in a, b"):
        overlap({"a": before}, {"b": after})


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_exploration_is_the_union_of_all_topologies(store):
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewirer = rewire.sparsify(model, optimizer, rewire.set_(density=0.25, every=1, until=6), store=store)
    seen, topologies = Exploration(rewirer.layers), [masks(model)["weight"].clone()]
    assert seen.share == 0.25

    def note(_):
        seen.add()
        topologies.append(masks(model)["weight"].clone())

    rewirer.on_rewire = note
    for _ in range(10):
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    union = torch.stack(topologies).any(0)
    assert len(topologies) > 3
    assert 16 < seen.positions["weight"] == int(union.sum())
    assert torch.equal(seen.ever["weight"], union)
    again = Exploration(rewirer.layers)
    again.load_state_dict(seen.state_dict())
    assert torch.equal(again.ever["weight"], union)
    assert seen.state_dict()["weight"].shape == (8,)


def test_bits_of_another_layer_are_refused():
    with pytest.raises(ValueError, match=r"are not the bits of 9 positions"):
        unpacked_bits(torch.zeros(1, dtype=torch.uint8), torch.Size([3, 3]))
    with pytest.raises(ValueError, match=r"are not the bits of 9 positions"):
        unpacked_bits(torch.zeros(2), torch.Size([3, 3]))


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_a_network_is_counted_whoever_holds_it_and_frozen_or_not(store):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.25), store=store)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert [one.nnz for one in densities(model)] == [layer.nnz for layer in rewirer.layers]
    assert [int(mask.sum()) for mask in masks(model).values()] == [layer.nnz for layer in rewirer.layers]
    assert positions(model, torch.zeros(1, 8)) == {"0": 1, "2": 1}
