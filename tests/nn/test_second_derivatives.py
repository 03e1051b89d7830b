"""Losses that depend on gradients: packed layers have no second derivatives, and say so."""

import pytest
import torch
from tests.nn.both_stores import both_stores
from torch import nn

from rewire.kernels import library

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")
MODELS = {
    "sequences": (lambda: nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 1)), (3, 9, 12)),
    "one layer": (lambda: nn.Sequential(nn.Linear(12, 2)), (3, 9, 12)),
    "vectors": (lambda: nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 1)), (9, 12)),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.LeakyReLU(), nn.Conv2d(8, 4, 3)), (5, 3, 8, 8)),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()), (5, 3, 8, 8)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MODELS)
def test_a_gradient_penalty_is_refused_not_left_out(name, dtype):
    """The gradient of a sum is a constant for torch's ``once_differentiable``, though it depends on the weights."""
    build, shape = MODELS[name]
    models, _ = both_stores(build().to(dtype))
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    for store, model in models.items():
        y = model(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        loss = y.mean() + slope.square().sum()
        if store == "masked":
            loss.backward()
        else:
            with pytest.raises(RuntimeError, match='no second derivatives.*store="masked"'):
                loss.backward()


@pytest.mark.parametrize("name", MODELS)
def test_a_graph_of_the_gradients_that_nobody_differentiates_changes_nothing(name):
    build, shape = MODELS[name]
    model, x = both_stores(build())[0]["packed"], torch.randn(shape)
    parameters = list(model.parameters())
    plain = torch.autograd.grad(model(x).square().sum(), parameters)
    for one, other in zip(
        torch.autograd.grad(model(x).square().sum(), parameters, create_graph=True), plain, strict=True
    ):
        assert one.requires_grad
        assert torch.equal(one, other)
