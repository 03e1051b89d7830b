"""Layers with a kernel: Conv1d, padding by name, subclasses that change nothing or only what is around the kernel."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from tests.networks import train
from tests.stores.packing import topology
from torch import nn

import rewire
from rewire.nn.coverage import no_kernel_reason
from rewire.nn.packed import Packed, PackedConv2d, PackedLinear

pytestmark = pytest.mark.usefixtures("one_thread")


class Renamed(nn.Linear):
    """As nn.MultiheadAttention does, but called."""

    def describe(self):
        return f"{self.in_features} to {self.out_features}"


class Cast(nn.Linear):
    """Like timm's Linear: a forward of its own that calls F.linear."""

    def forward(self, x):
        if torch.jit.is_scripting():
            return F.linear(x, self.weight.to(x.dtype), self.bias)
        return F.linear(x, self.weight, self.bias)


class StaticSame(nn.Conv2d):
    """Like the convolutions of efficientnet_pytorch: padded by a module that is made for one image size."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.static_padding = nn.ZeroPad2d((0, 1, 0, 1))

    def forward(self, x):
        x = self.static_padding(x)
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class DynamicSame(nn.Conv2d):
    """Pads by what the sizes of the input and of the kernel ask for."""

    def forward(self, x):
        if x.shape[2] % 2:
            x = F.pad(x, (0, self.weight.size(3) - 2, 0, 1))
        return F.conv2d(x, self.weight, self.bias, self.stride)


class Sized(nn.Conv2d):
    """Reads the shape of its weight, although nothing depends on the input."""

    def forward(self, x):
        return F.conv2d(x * self.weight.shape[1], self.weight, self.bias, self.stride)


class DynamicallyStandardised(nn.Conv2d):
    """Cannot be traced, and computes another weight from its own."""

    def forward(self, x):
        weight = self.weight - self.weight.mean() if x.shape[2] > 1 else self.weight
        return F.conv2d(x, weight, self.bias)


class NeedsMore(nn.Conv2d):
    """Cannot be traced, nor called with an input alone."""

    def forward(self, x, scale):
        return F.conv2d(x if x.shape[2] > 1 else x * scale, self.weight, self.bias)


class OtherwiseForLargeInputs(nn.Conv2d):
    """Uses its weight in another way for inputs larger than those that it is tried with."""

    def forward(self, x):
        weight = self.weight.abs() if x.shape[2] > 20 else self.weight
        return F.conv2d(x, weight, self.bias)


class Standardised(nn.Conv2d):
    """Computes another weight from its own."""

    def forward(self, x):
        return F.conv2d(x, self.weight - self.weight.mean(), self.bias)


class OtherStride(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight, self.bias, stride=2)


class OwnConvolution(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return F.conv2d(x, weight.abs(), bias)


LAYERS = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (4, 9)),
    "conv1d same": (lambda: nn.Conv1d(4, 6, 5, padding="same", dilation=2), (4, 9)),
    "conv1d same, even": (lambda: nn.Conv1d(4, 6, 4, padding="same"), (4, 9)),
    "same": (lambda: nn.Conv2d(4, 6, (3, 5), padding="same"), (4, 7, 6)),
    "same, even": (lambda: nn.Conv2d(4, 6, (2, 4), padding="same", dilation=(3, 1)), (4, 7, 6)),
    "valid": (lambda: nn.Conv2d(4, 6, 3, padding="valid", stride=2), (4, 7, 6)),
    "renamed": (lambda: Renamed(12, 6), (12,)),
    "cast": (lambda: Cast(12, 6), (12,)),
    "static same": (lambda: StaticSame(4, 6, 3, stride=2), (4, 8, 6)),
    "dynamic same": (lambda: DynamicSame(4, 6, 3, stride=2), (4, 7, 6)),
    "sized": (lambda: Sized(4, 6, 3), (4, 7, 6)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LAYERS)
def test_forward_and_gradients_are_those_of_the_dense_layer(name, dtype):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make().to(dtype)
    kind = type(layer)
    assert no_kernel_reason(layer, layer.weight) == ""
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    rewirer = rewire.sparsify(layer, optimizer, rewire.static(density=0.4), store="packed")
    assert isinstance(layer, Packed)
    assert isinstance(layer, kind)
    dense = rewire.to_dense(layer)
    assert type(dense) is kind
    for batch in ((5,), (1,), *([()] if len(shape) > 1 and name not in ("static same", "dynamic same") else [])):
        x = torch.randn(*batch, *shape, dtype=dtype)
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, expected = layer(ours), dense(theirs)
        grad = torch.randn_like(expected)
        layer.zero_grad()
        dense.zero_grad()
        y.backward(grad)
        expected.backward(grad)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
        active = dense.weight.grad.flatten()[layer.weight_positions.long()]
        torch.testing.assert_close(layer.weight_values.grad, active, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    rewirer.remove()
    assert type(layer) is kind


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", LAYERS)
def test_training_coincides_with_the_masked_store(name):
    make, shape = LAYERS[name]
    found = []
    for store in ("masked", "packed"):
        torch.manual_seed(0)
        first = make()
        features = first(torch.zeros(1, *shape)).numel()
        unflatten = nn.Unflatten(1, shape) if len(shape) > 1 else nn.Identity()
        model = nn.Sequential(unflatten, first, nn.ReLU(), nn.Flatten(), nn.Linear(features, 4)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        rewirer = rewire.sparsify(model, optimizer, rewire.rigl(density=0.3, every=2, until=100), store=store)
        losses = train(model, optimizer, 10, shape=(torch.Size(shape).numel(),), dtype=torch.float64)
        found.append((topology(rewirer), losses))
    assert found[0][0] == found[1][0]
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-9)


@pytest.mark.parametrize("kind", [DynamicallyStandardised, Standardised, OtherStride, OwnConvolution])
def test_a_forward_that_uses_the_weight_otherwise_stays_masked(kind):
    layer = kind(4, 6, 3)
    assert no_kernel_reason(layer, layer.weight) == f"no kernel for the forward of {kind.__name__}"
    model = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(3))
    x = torch.randn(2, 4, 7, 7)
    model(x)
    rewirer = rewire.sparsify(
        model, torch.optim.SGD(model.parameters(), lr=0.1), rewire.static(density=0.2), store="packed"
    )
    assert type(layer) is kind
    assert f"masked: 0 (no kernel for the forward of {kind.__name__})" in str(rewirer)
    fast = rewire.pack(model)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_forward_that_cannot_be_tried_stays_masked():
    layer = NeedsMore(4, 6, 3)
    assert no_kernel_reason(layer, layer.weight) == "no kernel for the forward of NeedsMore"


def test_trying_a_forward_changes_neither_the_layer_nor_the_generator():
    class Counts(DynamicSame):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x + torch.rand(1))

    layer = Counts(4, 6, 3)
    before = torch.random.get_rng_state()
    assert no_kernel_reason(layer, layer.weight) == ""
    assert layer.calls == 0
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.filterwarnings("ignore:.*reads the weight of")
def test_a_forward_that_uses_the_weight_otherwise_for_some_inputs_is_right_for_all():
    layer = OtherwiseForLargeInputs(4, 6, 3)
    rewire.sparsify(layer, torch.optim.SGD(layer.parameters(), lr=0.1), rewire.static(density=0.4), store="packed")
    assert isinstance(layer, Packed)
    dense = rewire.to_dense(layer)
    for size in (7, 25):
        x = torch.randn(2, 4, size, size)
        y, expected = layer(x), dense(x)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
        layer.zero_grad()
        dense.zero_grad()
        y.square().sum().backward()
        expected.square().sum().backward()
        active = dense.weight.grad.flatten()[layer.weight_positions.long()]
        torch.testing.assert_close(layer.weight_values.grad, active, rtol=1e-4, atol=1e-3)


def test_a_subclass_keeps_its_methods_copies_and_pickles():
    model = nn.Sequential(Renamed(8, 6), nn.ReLU(), Cast(6, 4))
    rewire.sparsify(model, torch.optim.SGD(model.parameters(), lr=0.1), rewire.static(density=0.4), store="packed")
    x = torch.randn(5, 8)
    assert model[0].describe() == "8 to 6"
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other[0]) is type(model[0])
        assert isinstance(other[2], PackedLinear)
        assert torch.equal(other(x), model(x))
        other.load_state_dict(model.state_dict())


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("size", [1, 4])
def test_pack_takes_all_of_them(size):
    torch.manual_seed(0)
    model = nn.Sequential(
        *(StaticSame(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, padding="same"), nn.BatchNorm2d(6)),
        *(nn.ReLU(), nn.Conv2d(6, 6, 2, padding="same"), nn.ReLU(), nn.Flatten(2), nn.Conv1d(6, 4, 3), nn.ReLU()),
        *(nn.Flatten(), Renamed(4 * 33, 8), nn.ReLU(), Cast(8, 4), nn.ReLU()),
    ).eval()
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            module.weight.data.mul_(torch.rand_like(module.weight) < 0.25)
    fast, x = rewire.pack(model, densest=1.0), torch.randn(size, 4, 8, 6)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert sum(isinstance(module, Packed) for module in fast.modules()) == 6
    assert sum(isinstance(module, PackedConv2d) for module in fast.modules()) == 3


def test_layers_can_be_kept_masked_by_name():
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = rewire.static(density=0.25, start="uniform")
    with pytest.raises(ValueError, match="keep_masked='3' matches no layer"):
        rewire.sparsify(model, optimizer, method, store="packed", keep_masked="3")
    rewirer = rewire.sparsify(model, optimizer, method, store="packed", keep_masked="2")
    assert rewirer.store.notes == {"2": "kept masked"}
    assert [isinstance(module, Packed) for module in (model[0], model[2])] == [True, False]
    assert model[2].weight.count_nonzero() == 6
