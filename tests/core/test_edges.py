"""Corners of the core that random tests rarely meet."""

import pytest
import torch
from tests.fakes import ListLayer, _
from torch import nn

import rewire
from rewire.core.dense_ops import top_where_inactive
from rewire.core.layer import Context, Signal
from rewire.core.views import Edited
from rewire.parts import Strongest


def test_a_dropped_weight_without_a_gradient_is_no_candidate():
    layer = ListLayer([5.0, _, 1.0, 3.0, _], grad=[9, 0, 0, 2, 4])
    after = Edited(layer, torch.tensor([2, 3]), index=0)
    # Of the dropped ones 3 has a gradient and 2 has none, as 1, which was never there.
    assert after.top_inactive(Signal.GRAD, 5).positions.tolist() == [3, 4]
    assert after.top_inactive(Signal.GRAD, 5, floor=2.0).positions.tolist() == [3, 4]
    assert after.top_inactive(Signal.GRAD, 5, floor=2.5).positions.tolist() == [4]


def test_what_a_zero_gradient_leaves_open_is_grown_at_random():
    layer = Edited(ListLayer([5.0, _, 1.0, _, _], grad=[0, 0, 0, 0, 4]), torch.tensor([2]), index=0)
    grown = {tuple(Strongest()(layer, 2, Context(seed=seed)).tolist()) for seed in range(40)}
    assert grown == {(1, 4), (2, 4), (3, 4)}  # the dropped position is as likely as the others, not preferred


@pytest.mark.parametrize("shape", [(70_000, 3), (3, 70_000), (2, 70_000, 2)])
def test_the_top_of_a_transposed_tensor_with_a_side_longer_than_a_tile(shape):
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(shape, generator=generator).transpose(0, 1)
    mask = (torch.rand(shape, generator=generator) < 0.2).transpose(0, 1)
    assert not dense.is_contiguous()
    top = top_where_inactive(dense, mask, 500)
    magnitudes = torch.where(mask, 0.0, dense.abs()).flatten()
    assert top.positions.tolist() == sorted(magnitudes.topk(500).indices.tolist())
    assert torch.equal(top.values, magnitudes[top.positions])


class Halves(nn.Module):
    """One layer takes part in the forward pass only from some step on."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(10, 10), nn.Linear(10, 10)
        self.both = False

    def forward(self, x):
        return self.unused(self.used(x)) if self.both else self.used(x)


@pytest.mark.parametrize("store", ["masked", "packed"])
@pytest.mark.parametrize("name", ["rigl", "ggr", "set_rigl", "granet"])
def test_a_layer_without_a_gradient_at_a_rewiring(store, name):
    torch.manual_seed(0)
    model = Halves()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = rewire.METHODS[name](density=0.3, every=1, until=4, fraction=0.5, start="uniform")
    rewirer = rewire.sparsify(model, optimizer, method, store=store)

    def step():
        (1e-3 * model(torch.randn(8, 10)).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    first = rewirer.history[0]
    assert rewirer.nnz == round(method.density(1) * 200)
    used, unused = rewirer.layers
    assert model.unused.weight.grad is None
    if name == "ggr":  # all gradients are in the other layer, however small they are
        assert (first.dropped, first.grown) == ([15, 15], [30, 0])
    if name == "rigl":  # it is dropped from, and grown at random
        assert first.dropped[1] == first.grown[1] > 0
    assert used.nnz + unused.nnz == rewirer.nnz
    model.both = True
    step()
    assert rewirer.nnz == round(method.density(2) * 200)
