"""What the tests of training loops share: a sparse model in either store, and its weights as dense tensors."""

import pytest
import torch
import torch.nn.functional as F
from tests.networks import mlp
from torch import nn

import rewire
from rewire.stores.convert import to_dense

STORES = ("masked", "packed")
both_stores = pytest.mark.parametrize("store", STORES)

METHODS = {
    "ggr": rewire.ggr(density=0.3, every=3, until=1000, fraction=0.4),  # the number of weights in a layer changes
    "rigl": rewire.rigl(density=0.3, every=3, until=1000, fraction=0.4),  # it does not
}
both_methods = pytest.mark.parametrize("method", list(METHODS))


def sparse(store, method="ggr", model=None, lr=0.1, momentum=0.9, dtype=torch.float64):
    model = mlp(dtype=dtype) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=1e-3)
    chosen = METHODS[method] if isinstance(method, str) else method
    return model, optimizer, rewire.sparsify(model, optimizer, chosen, store=store)


def batch(step, shape=(12,), dtype=torch.float64):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, *shape, generator=generator, dtype=dtype)
    return x, torch.randint(4, (16,), generator=generator)


def train(model, optimizer, steps, begin=0, after=None, shape=(12,), dtype=torch.float64):
    for step in range(begin, begin + steps):
        x, y = batch(step, shape, dtype)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if after is not None:
            after(step)


def dense(model):
    """The parameters of a masked or packed model with zeros in place."""
    return [parameter.detach() for parameter in to_dense(model).parameters()]


def mask_in(module):
    """The mask of a masked or packed layer, or nothing."""
    if "weight_positions" in module._buffers:
        mask = torch.zeros(module.dense_shape.numel(), dtype=torch.bool)
        mask[module.weight_positions.long()] = True
        return mask.view(module.dense_shape)
    return module._buffers.get("weight_mask")


def masks(model):
    return [mask for mask in map(mask_in, model.modules()) if mask is not None]


def sparse_weights(model):
    """The dense weights of the sparse layers."""
    plain = dict(to_dense(model).named_modules())
    return [plain[name].weight.detach() for name, module in model.named_modules() if mask_in(module) is not None]


def assert_same_topology(one, other):
    for a, b in zip(masks(one), masks(other), strict=True):
        assert torch.equal(a, b)


def assert_zero_off_mask(model):
    for module in model.modules():
        mask = module._buffers.get("weight_mask")
        if mask is not None:
            assert not module._parameters["weight"][~mask].any()


def conv_net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(72, 4)),
    ).double()
