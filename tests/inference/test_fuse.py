"""Fusing batch norm, ReLU and sums where nobody can tell, and only there."""

import pytest
import torch
import torch.nn.functional as F
from tests.graphs import agrees, scattered
from torch import nn

import rewire


class Two(nn.Module):
    """Whatever can be written down with two linear layers."""

    def __init__(self, forward):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.how = nn.Linear(8, 8), nn.Linear(8, 8), forward

    def forward(self, x):
        return self.how(self, x)


def sum_before_its_summand_changes(net, x):
    one, two = net.one(x), net.two(x)
    total = one + two
    one = F.relu(one, inplace=True)
    return F.relu(total) + one


@pytest.mark.parametrize("size", [1, 5, 32])
def test_a_sum_is_computed_before_its_summands_change(size):
    model = scattered(Two(sum_before_its_summand_changes))
    agrees(rewire.pack(model), model, torch.randn(size, 8))


def image_layers():
    torch.manual_seed(0)
    model = scattered(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()))
    return model, "01234"


def linear_layers():
    torch.manual_seed(0)
    return scattered(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))), "012"


@pytest.mark.parametrize("size", [1, 5, 32])
@pytest.mark.parametrize(("build", "shape"), [(image_layers, (3, 8, 8)), (linear_layers, (8,))])
def test_what_hooks_return_is_kept(build, shape, size):
    names, x = build()[1], torch.randn(size, *shape)
    for name in names:
        model, _ = build()
        model.get_submodule(name).register_forward_hook(lambda module, args, y: y - 1)
        agrees(rewire.pack(model), model, x)
        model, _ = build()
        model.get_submodule(name).register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        agrees(rewire.pack(model), model, x)


def test_a_layer_that_a_called_module_contains_is_left_alone():
    class ReadsInside(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)

        def forward(self, x):
            return F.relu(self.encoder.linear1(x)).sum(-1, keepdim=True) + self.encoder(x)

    torch.manual_seed(0)
    model = scattered(ReadsInside())
    with torch.no_grad():
        agrees(rewire.pack(model), model, torch.randn(3, 5, 8))


@pytest.mark.parametrize("relu", [torch.relu, F.relu6])
def test_a_sum_of_integers_stays_one(relu):
    class Sum(nn.Module):
        def forward(self, x, other):
            return relu(x + other)

    x = torch.tensor([[-3, 2]])
    y = rewire.pack(Sum())(x, x)
    assert torch.equal(y, relu(x + x))
    assert y.dtype == relu(x + x).dtype
