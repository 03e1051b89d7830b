import pytest
import torch
from torch import nn

import rewire
from rewire.analysis.density import densities, masks
from rewire.analysis.overlap import Exploration, Overlap, overlap


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


def test_exploration_follows_a_training():
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), Exploration()
    rewire.sparsify(
        model,
        optimizer,
        rewire.set_(density=0.25, every=1, until=10),
        on_rewire=lambda record: seen.add(masks(model)),
    )
    start = masks(model)
    seen.add({name: mask.clone() for name, mask in start.items()})
    for _ in range(10):
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert 0.25 < seen.share <= 1
    assert seen.positions[next(iter(seen.positions))] > 16
