"""Packed weights are vectors: optimizers and groups that go by the number of dimensions take them for biases."""

import warnings

import pytest
import torch
from tests.networks import mlp

import rewire


def test_groups_that_were_made_by_the_number_of_dimensions_are_mentioned():
    """Packed weights are vectors, as biases are: all of them land in the group that does not decay."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.5), exclude=["4"], store="packed")
    decaying = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    by_dimension = [{"params": decaying, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    with pytest.warns(UserWarning, match="if groups were made by p.ndim, make them by name, or before sparsify"):
        rewirer.follow(torch.optim.SGD(by_dimension, lr=0.1))
    for groups in (model.parameters(), [{"params": model.parameters(), "weight_decay": 0.1}]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rewirer.follow(torch.optim.SGD(groups, lr=0.1))


def test_optimizers_that_leave_vectors_out_are_refused_in_the_packed_store():
    class LARS(torch.optim.SGD):
        pass

    model = mlp()
    with pytest.raises(ValueError, match="LARS usually treats parameters of one dimension as biases"):
        rewire.sparsify(model, LARS(model.parameters(), lr=0.1), rewire.static(density=0.5), store="packed")
    rewire.sparsify(model, LARS(model.parameters(), lr=0.1), rewire.static(density=0.5))
