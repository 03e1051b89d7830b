"""What runs in one go in a Sequential is what its modules compute one after the other."""

import inspect

import pytest
import torch
from tests.networks import OPTIMIZERS, train
from tests.stores import packing
from torch import nn

import rewire
from rewire.kernels import library
from rewire.kernels.batch import relu
from rewire.nn.fusion import HwcnSequential
from rewire.nn.hwcn import HwcnLinear
from rewire.nn.packed import PACKED_MODULES
from rewire.nn.replace import HWCN_MODULES

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")


def chain(activation=nn.ReLU):
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), activation()),
        *(nn.Conv2d(8, 8, 3, padding=1), activation(), nn.BatchNorm2d(8), activation(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 6, 1), nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Linear(6, 9), activation(), nn.Linear(9, 4)),
    )


def sparse(model, density=0.5, every=10**6):
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    return rewire.sparsify(model, optimizer, rewire.rigl(density=density, every=every, until=10**7), store="packed")


def values(model, x):
    """Output, gradients and running statistics of a training step."""
    model.zero_grad()
    y = model(x)
    y.square().sum().backward()
    return [y, *(p.grad for p in model.parameters()), *(b.clone() for n, b in model.named_buffers() if "running" in n)]


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ReLU6])
def test_fused_equals_one_after_the_other(activation):
    model = chain(activation)
    sparse(model)
    plain = rewire.to_dense(model)
    assert type(model) is HwcnSequential
    assert type(plain) is nn.Sequential
    x = torch.randn(10, 3, 8, 8) * 4
    found, expected = values(model, x), values(plain, x)
    for ours, theirs in zip(found, expected, strict=True):
        if ours.shape != theirs.shape:  # the gradient of a packed weight: those positions alone
            index = next(i for i, one in enumerate(found) if one is ours) - 1
            name = [n for n, _ in model.named_parameters()][index].removesuffix("weight")
            theirs = theirs.flatten()[model.get_buffer(name + "weight_positions").long()]
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_a_hook_sees_what_its_module_returns():
    model = chain()
    sparse(model)
    x = torch.randn(6, 3, 8, 8)
    fused = model(x)
    seen = {}
    for index in (1, 4):
        model[index].register_forward_hook(lambda m, _, out, i=index: seen.update({i: out}))
    again = model(x)
    assert float(seen[1].detach().min()) < 0  # batch norm, before the ReLU
    assert float(seen[4].detach().min()) == 0
    torch.testing.assert_close(again, fused, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_a_forward_that_was_put_on_one_module_runs(training):
    """As Accelerate's hooks and some adapters do it."""
    model = chain().train(training)
    sparse(model)
    x = torch.randn(6, 3, 8, 8)
    model(x)
    for index, module in enumerate(model):
        calls, forward = [], module.forward

        def counting(*args, calls=calls, forward=forward):
            calls.append(1)
            return forward(*args)

        module.forward = counting
        model(x)
        del module.forward
        assert calls == [1], f"{index}: {type(module).__name__}"


@pytest.mark.parametrize("changed", [{}, {"track_running_stats": False}, {"momentum": None}, {"momentum": 0.5}])
@pytest.mark.parametrize("without", ["", "num_batches_tracked"])
@pytest.mark.parametrize("train", [True, False])
def test_settings_that_a_batch_norm_gets_later_count(changed, without, train):
    """Adversarial training switches ``track_running_stats``; in chains, in pairs and alone it is what torch does."""
    model = chain()
    sparse(model)
    plain = rewire.to_dense(model)
    for one in (model, plain):
        one.train(train)
        for module in one.modules():
            if isinstance(module, nn.BatchNorm2d):
                for name, value in changed.items():
                    setattr(module, name, value)
                if without:
                    setattr(module, without, None)
    for _ in range(3):
        x = torch.randn(10, 3, 8, 8)
        torch.testing.assert_close(model(x), plain(x), rtol=1e-3, atol=1e-3)
    ours, theirs = (dict(one.named_buffers()) for one in (model, plain))
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-3)


def test_modules_called_alone_are_themselves():
    model = chain()
    sparse(model)
    x = torch.randn(6, 3, 8, 8)
    out = model[1](model[0](x))
    assert float(out.detach().min()) < 0


def test_what_is_ranked_at_a_rewiring_is_the_gradient_before_the_relu():
    """Linear layers apply the ReLU behind them, but not where the output's gradient is remembered."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    rewirer = sparse(model, every=1)
    layer = rewirer.layers[0]
    x = torch.randn(5, 8)
    model(x).square().sum().backward()
    (_, grad), *_ = layer.module.backward_record.pairs
    plain = rewire.to_dense(model)
    hidden = plain[0](x)
    (expected,) = torch.autograd.grad(plain[2](hidden.relu()).square().sum(), hidden)
    torch.testing.assert_close(grad.flatten(1), expected)


@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (3, 5, 7, 2), (16, 40, 41, 41)])
@pytest.mark.parametrize("limit", [6.0, float("inf")])
def test_relu_in_memory_that_is_used_again(shape, limit):
    n, c, h, w = shape
    x = (torch.randn(h, w, c, n) * 5).permute(3, 2, 0, 1).requires_grad_()
    y, expected = relu.relu(x, limit), x.clamp(0, limit)
    grad = torch.randn_like(x)
    assert torch.equal(y, expected)
    assert y.stride() == x.stride()
    (ours,), (theirs,) = (torch.autograd.grad(t, x, grad) for t in (y, nn.functional.hardtanh(x, 0, limit)))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-3), (torch.float64, 1e-9)])
@pytest.mark.parametrize("size", [5, 160])
def test_maps_may_be_changed_in_place(dtype, near, size):
    """Small maps come from torch, large ones from the pool; neither is a view, which torch would refuse to change."""
    losses = {}
    for store in ("masked", "packed"):
        model, optimizer, _ = packing.sparse(store, "in place", dtype=dtype)
        losses[store] = train(model, optimizer, 12, shape=packing.IMAGE, size=size, dtype=dtype)
    assert losses["packed"] == pytest.approx(losses["masked"], rel=near)


def test_arguments_have_the_names_that_torch_gives_them():
    for torch_class, ours in [*HWCN_MODULES.items(), *PACKED_MODULES.items(), (nn.Linear, HwcnLinear)]:
        names = list(inspect.signature(torch_class.forward).parameters)
        assert list(inspect.signature(ours.forward).parameters) == names
