"""Code that changes the input of a packed layer in place after the layer has read it."""

import copy

import pytest
import torch
from tests.nn.both_stores import both_stores
from torch import nn

import rewire
from rewire.kernels import library

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")


class Overwrites(nn.Module):
    def __init__(self, layer, in_place):
        super().__init__()
        self.layer, self.in_place = layer, in_place

    def forward(self, x):
        x = x * torch.linspace(0.1, 3, x.shape[1]).view(-1, *[1] * (x.dim() - 2))
        y = self.layer(x)
        other = x.copy_(x.flip(1)) if self.in_place else x.flip(1)
        return y + 0 * other.sum()


def trained(layer, shape, in_place):
    torch.manual_seed(0)
    method = rewire.rigl(density=0.3, every=2, until=100)
    models, rewirers = both_stores(Overwrites(copy.deepcopy(layer), in_place), method)
    rewirer, model = rewirers["packed"], models["packed"]
    for step in range(5):
        torch.manual_seed(step)
        y = model(torch.randn(shape))
        (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
        rewirer.store.optimizer.step()
        rewirer.store.optimizer.zero_grad()
    assert len(rewirer.history) == 2
    return rewirer.layers[0].active().tolist(), model.layer.weight_values.tolist()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(24, 24), (20, 24)),
        (nn.Conv2d(4, 4, 3, padding=1), (5, 4, 8, 8)),
        (nn.Conv2d(4, 4, 3, padding=1), (1, 4, 8, 8)),
        (nn.Conv1d(4, 4, 3, padding=1), (5, 4, 8)),
    ],
    ids=["vectors", "images", "one image", "conv1d"],
)
def test_a_rewiring_ranks_the_gradient_of_what_the_layer_has_read(layer, shape):
    """The kernels keep a copy in their own layout, so the change is no error; the records must be that copy too."""
    assert trained(layer, shape, in_place=True) == trained(layer, shape, in_place=False)


@pytest.mark.parametrize("every", [1, 50])
@pytest.mark.parametrize("shape", [(3, 7, 24), (2000, 24)])
def test_a_layer_that_keeps_its_input_as_it_is_refuses_the_change(shape, every):
    """As torch does, at ordinary steps and at those that rewire."""

    class Scales(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(24, 24)

        def forward(self, x):
            x = x * 1
            y = self.layer(x)
            return y + x.mul_(2)

    model = both_stores(Scales(), rewire.rigl(density=0.3, every=every, until=100))[0]["packed"]
    assert (model.layer.backward_record is not None) == (every == 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(torch.randn(shape)).sum().backward()
