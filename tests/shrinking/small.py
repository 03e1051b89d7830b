"""Layers with given weights."""

import torch
from torch import nn

SMALL = {"atol": 1e-12, "rtol": 1e-12}


def linear(weight, bias=None):
    weight = torch.tensor(weight, dtype=torch.float64)
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=torch.float64)
    made.weight.data = weight
    if bias is not None:
        made.bias.data = torch.tensor(bias, dtype=torch.float64)
    return made


def conv(weight, bias=None, **options):
    weight = torch.tensor(weight, dtype=torch.float64)
    groups = options.get("groups", 1)
    made = nn.Conv2d(weight.shape[1] * groups, weight.shape[0], weight.shape[2:], bias=bias is not None, **options)
    made = made.double()
    made.weight.data = weight
    if bias is not None:
        made.bias.data = torch.tensor(bias, dtype=torch.float64)
    return made


def wired(model):
    """Masks where the weights of these small networks are: nothing in them is zero by accident."""
    layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    for module in layers:
        module.register_buffer("weight_mask", module.weight != 0)
    return model


def same(model, small, *shape):
    x = torch.randn(5, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(small.eval()(x), model.eval()(x), **SMALL)
