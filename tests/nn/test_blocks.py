"""A residual block as one chain: what its forward computes, and module by module where that would be noticed."""

import random

import pytest
import torch
import torch.nn.functional as F
from tests.networks import OPTIMIZERS
from torch import nn

import rewire
from rewire.kernels import library
from rewire.kernels.batch import chain as stages
from rewire.nn import chains
from rewire.nn.blocks import block_chain
from rewire.nn.fusion import HwcnSequential

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")
SEQUENTIAL = (nn.Sequential.forward, HwcnSequential.forward)


class Basic(nn.Module):
    """As in torchvision: layers one by one, a sum in place, a ReLU that is used twice."""

    def __init__(self, inputs=6, outputs=6, stride=1, bias=False):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=bias)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=bias)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=bias), nn.BatchNorm2d(outputs))

    def forward(self, x):
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Inverted(nn.Module):
    """As in MobileNetV2: no ReLU behind the sum."""

    def __init__(self, stride=1, bias=False):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(6, 12, 1, bias=bias), nn.BatchNorm2d(12), nn.ReLU6()),
            *(nn.Conv2d(12, 12, 3, stride, 1, groups=12, bias=bias), nn.BatchNorm2d(12), nn.ReLU6()),
            *(nn.Conv2d(12, 6, 1, bias=bias), nn.BatchNorm2d(6)),
        )
        self.residual = stride == 1

    def forward(self, x):
        y = self.layers(x)
        return x + y if self.residual else y


class Functions(Basic):
    """Functions of torch instead of modules."""

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return torch.add(x, self.bn2(self.conv2(y))).relu()


BLOCKS = {
    "basic": Basic,
    "basic with bias": lambda: Basic(bias=True),
    "strided": lambda: Basic(6, 8, 2),
    "projected": lambda: Basic(6, 8, 1, bias=True),
    "inverted": Inverted,
    "inverted, strided": lambda: Inverted(2, bias=True),
    "functions": Functions,
}


def sparse(model, density=0.5, every=10**6):
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    rewirer = rewire.sparsify(model, optimizer, rewire.rigl(density=density, every=every, until=10**7), store="packed")
    return optimizer, rewirer


def packed(block, density=0.5, every=10**6):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), block())
    sparse(model, density, every)
    return model.train()


def watched(monkeypatch):
    """Counts the stages of every chain that runs."""
    runs = []
    run = stages.run_chain
    monkeypatch.setattr(chains, "run_chain", lambda x, found, given: runs.append(len(found)) or run(x, found, given))
    return runs


def values(model, x):
    """Output, gradients of input and parameters, running statistics of a training step."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    buffers = {name: b.clone().float() for name, b in model.named_buffers() if "positions" not in name}
    return {"output": y.detach(), "input": x.grad} | gradients(model) | buffers


def gradients(model):
    """By name; not those of biases in front of a batch norm, which are nothing but rounding."""
    biases = {f"{name}.bias" for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    return {name: parameter.grad for name, parameter in model.named_parameters() if name not in biases}


def one_by_one(model, x):
    """The same module by module: a hook on every module keeps them apart."""
    handles = [module.register_forward_hook(lambda *_: None) for module in model.modules()]
    found = values(model, x)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("batch", [2, 5, 32])
@pytest.mark.parametrize("density", [0.3, 0.9])
@pytest.mark.parametrize("kind", BLOCKS)
def test_a_chain_computes_what_the_modules_compute(kind, density, batch, monkeypatch):
    runs = watched(monkeypatch)
    fused, plain = packed(BLOCKS[kind], density), packed(BLOCKS[kind], density)
    plain.load_state_dict(fused.state_dict())
    x = torch.randn(batch, 3, 8, 8)
    for _ in range(2):  # running statistics move on
        found, expected = values(fused, x), one_by_one(plain, x)
    assert runs == [1, 3 if "inverted" in kind or kind in ("strided", "projected") else 2] * 2
    assert found.keys() == expected.keys()
    for name, theirs in expected.items():
        torch.testing.assert_close(found[name], theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()) + 1e-4)
    for name, parameter in fused.named_parameters():
        if name not in found:
            assert float(parameter.grad.abs().max()) < 0.01  # a bias in front of a batch norm


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_chain_is_as_exact_as_float64(kind):
    """Against the dense model in double precision, with its own batch norm and autograd."""
    fused = packed(BLOCKS[kind])
    exact = rewire.to_dense(fused).double().train()
    x = torch.randn(16, 3, 8, 8)
    y, expected = fused(x), exact(x.double())
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-5)
    y.square().sum().backward()
    expected.square().sum().backward()
    theirs = gradients(exact)
    for name, ours in gradients(fused).items():
        grad = theirs[name].flatten()
        layer = fused.get_submodule(name.rpartition(".")[0])
        if name.endswith(".weight") and hasattr(layer, "weight_positions"):
            grad = grad[layer.weight_positions.long()]
        torch.testing.assert_close(ours.double(), grad, rtol=1e-3, atol=1e-4 * float(grad.abs().max() + 1))


def test_a_hook_a_patch_and_a_mode_keep_modules_apart(monkeypatch):
    model, x = packed(Basic), torch.randn(4, 3, 8, 8)
    runs, seen = watched(monkeypatch), []
    block = model[3]
    for module in (block, block.bn1, block.relu):
        handle = module.register_forward_hook(lambda m, _, out: seen.append(m))
        model(x)
        handle.remove()
    assert seen == [block, block.bn1, block.relu, block.relu]
    assert runs == [1, 1, 1]
    block.bn2.forward = lambda y: seen.append("patched") or nn.BatchNorm2d.forward(block.bn2, y)
    model(x)
    assert seen[-1] == "patched"
    del block.bn2.forward
    block.bn1.eval()  # frozen statistics
    before = block.bn1.running_mean.clone()
    model(x)
    assert torch.equal(block.bn1.running_mean, before)
    assert 2 not in runs
    block.bn1.train()
    model(x)
    assert runs[-1] == 2
    with torch.no_grad():
        model.eval()(x)
    assert runs.count(2) == 1


def test_a_changed_block_is_recorded_again(monkeypatch):
    model, x, runs = packed(Inverted), torch.randn(4, 3, 8, 8), watched(monkeypatch)
    block = model[3]
    with_sum = model(x)
    block.residual = False
    without = model(x)
    assert runs == [1, 3, 1, 3]
    hidden = nn.Sequential(*list(model)[:3])(x)
    torch.testing.assert_close(with_sum, without + hidden)
    block.layers[2] = nn.Sigmoid()
    model(x)
    assert runs[-1] == 1


def test_what_a_rewiring_ranks_is_recorded_module_by_module():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), Basic())
    _, rewirer = sparse(model, every=1)
    model.train()(torch.randn(4, 3, 8, 8)).square().sum().backward()
    assert all(len(layer.module.backward_record.pairs) == 1 for layer in rewirer.layers)


class Counting(Basic):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return Basic.forward(self, x)


class Chancy(Basic):
    def forward(self, x):
        return x if random.random() < 0.5 else self.relu(self.bn1(self.conv1(x)) + x)


class Branching(Basic):
    def forward(self, x):
        y = self.bn1(self.conv1(x))
        return self.relu(y + x) if x.sum() > 0 else y


class ReadTwice(Basic):
    """The sum in place changes what is read afterwards."""

    def forward(self, x):
        y = z = self.bn1(self.conv1(x))
        z += x
        return self.relu(self.bn2(self.conv2(y)) + y)


class Scaled(Basic):
    def forward(self, x):
        return self.relu(self.bn1(self.conv1(x)) * 2 + x)


class Twice(Basic):
    def forward(self, x):
        return self.bn1(self.conv1(x)), x


@pytest.mark.parametrize("kind", [Counting, Chancy, Branching, ReadTwice, Scaled, Twice])
def test_a_forward_that_does_anything_else_is_left_alone(kind):
    model = packed(Basic)
    block = model[3]
    block.__class__ = kind
    assert block_chain(block, SEQUENTIAL) is None
    block.__class__ = Basic
    assert block_chain(block, SEQUENTIAL) is not None


def test_shapes_that_do_not_fit_raise_as_they_do_without_a_chain():
    model = packed(Basic)
    with pytest.raises(ValueError, match="reads 3 channels"):
        model(torch.randn(4, 5, 8, 8))


def test_a_chain_may_run_backward_twice_and_under_checkpointing():
    model, x = packed(Basic), torch.randn(4, 3, 8, 8)
    loss = model(x).square().sum()
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    loss.backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(first, model.parameters(), strict=True))


@pytest.mark.parametrize("frozen", ["conv1", "bn1", "conv2", "bn2"])
def test_parameters_that_do_not_train(frozen):
    model, x = packed(Basic), torch.randn(4, 3, 8, 8)
    model(x).square().sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model[3].get_submodule(frozen).requires_grad_(False)
    model(x).square().sum().backward()
    for name, parameter in model.named_parameters():
        if frozen in name:
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, expected[name])
