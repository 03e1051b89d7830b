"""Code that reads ``layer.weight`` of a packed layer sees the dense weight; changing it is refused with a sentence."""

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.networks import train
from tests.stores.packing import topology
from torch import nn

import rewire
from rewire.nn.dense_weight import DenseWeight
from rewire.nn.packed import Packed

pytestmark = pytest.mark.usefixtures("one_thread")


def packed(model, density=0.4, store="packed", every=10**6):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method = rewire.rigl(density=density, every=every, until=10**7, fraction=0.3)
    return optimizer, rewire.sparsify(model, optimizer, method, store=store)


@pytest.fixture
def layer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6, dtype=torch.float64))
    packed(model)
    return model[0]


@pytest.fixture
def written_out(monkeypatch):
    """The names of the functions for which a dense weight was written out."""
    readers = []
    write_out = DenseWeight.write_out
    monkeypatch.setattr(DenseWeight, "write_out", lambda self, name: readers.append(name) or write_out(self, name))
    return readers


def test_sizes_and_types_are_those_of_the_dense_weight(layer, written_out):
    weight = layer.weight
    assert (weight.shape, weight.ndim, len(weight), weight.numel()) == ((6, 8), 2, 6, 48)
    assert (weight.size(1), weight.dtype, weight.device.type) == (8, torch.float64, "cpu")
    assert weight.requires_grad
    assert weight.grad is None
    assert isinstance(weight, torch.Tensor)
    assert not written_out
    assert dict(layer.named_parameters())["weight"] is layer.weight_values
    assert layer.weight_values.shape == layer.state_dict()["weight"].shape == layer.weight_positions.shape


READS = {
    "product": lambda layer, x: x @ layer.weight.t(),
    "elementwise": lambda layer, x: layer.weight.pow(2).mean(),
    "slice": lambda layer, x: F.linear(x, layer.weight[:3], layer.bias[:3]),
    "in a list": lambda layer, x: torch.cat([layer.weight, layer.weight], 1),
    "by keyword": lambda layer, x: torch.einsum("bi,oi->bo", x, layer.weight),
    "kept for later": lambda layer, x: (lambda weight: weight.sum() * weight.abs().max())(layer.weight),
    "linear": lambda layer, x: F.linear(x, layer.weight, layer.bias),
    "linear by keyword": lambda layer, x: F.linear(input=x, weight=layer.weight),
}


@pytest.mark.filterwarnings("ignore:.* reads the weight of 0 as a dense tensor")
@pytest.mark.parametrize("how", READS)
def test_reading_gives_the_values_and_gradients_of_a_dense_layer(how, layer, written_out):
    dense, x = rewire.to_dense(layer), torch.randn(5, 8, dtype=torch.float64)
    ours, theirs = (READS[how](one, x) for one in (layer, dense))
    torch.testing.assert_close(ours, theirs)
    assert bool(written_out) != how.startswith("linear")
    ours.sum().backward()
    theirs.sum().backward()
    expected = dense.weight.grad.flatten()[layer.weight_positions.long()]
    torch.testing.assert_close(layer.weight_values.grad, expected)
    read = layer.weight.grad
    assert torch.equal(read != 0, rewire.to_dense(layer).weight != 0) or not expected.all()
    torch.testing.assert_close(read.flatten()[layer.weight_positions.long()], expected)


WRITES = {
    "mul_": lambda weight: weight.mul_(2),
    "data": lambda weight: weight.data.mul_(2),
    "detach": lambda weight: weight.detach().zero_(),
    "init": nn.init.kaiming_uniform_,
    "setitem": lambda weight: weight.__setitem__(0, 1.0),
    "assigned data": lambda weight: setattr(weight, "data", torch.zeros(6, 8)),
    "out": lambda weight: torch.add(weight, 1, out=weight),
    "foreach": lambda weight: torch._foreach_mul_([weight], 2.0),
    "operator": lambda weight: weight.__imul__(2),
    "hook": lambda weight: weight.register_hook(print),
    "gradient": lambda weight: setattr(weight, "grad", torch.zeros(6, 8)),
}


@pytest.mark.parametrize("how", WRITES)
def test_what_would_be_lost_is_refused_with_the_name_of_the_layer(how, layer):
    before = layer.weight_values.detach().clone()
    with pytest.raises(RuntimeError, match=r"cannot change the (weight|data) of 0: .*keep_masked='0'"):
        WRITES[how](layer.weight)
    assert torch.equal(layer.weight_values, before)


def test_the_gradient_cannot_be_changed_through_a_dense_copy(layer):
    layer(torch.randn(5, 8, dtype=torch.float64)).sum().backward()
    with pytest.raises(RuntimeError, match="mul_ cannot change the grad of 0"):
        layer.weight.grad.mul_(2)
    torch.testing.assert_close(layer.weight.grad.abs().sum(), layer.weight_values.grad.abs().sum())


def test_an_optimizer_made_of_reads_is_refused(layer):
    with pytest.raises(ValueError, match="non-leaf"):
        torch.optim.SGD([layer.weight], lr=0.1)


def test_a_read_may_be_written_elsewhere(layer):
    average = torch.zeros(6, 8, dtype=torch.float64)
    with torch.no_grad():
        average.lerp_(layer.weight, 0.5)
        assert torch.equal(average, 0.5 * rewire.to_dense(layer).weight)
        average.copy_(layer.weight)
    assert torch.equal(average, rewire.to_dense(layer).weight)


def test_a_layer_is_frozen_through_its_weight(layer):
    layer.weight.requires_grad_(False)
    assert not layer.weight_values.requires_grad
    layer.weight.requires_grad = True
    assert layer.weight_values.requires_grad


def test_only_reads_that_are_trained_are_warned_about_and_only_once(layer):
    layer.weight.norm().item()
    with pytest.warns(UserWarning, match=r"pow\(\) reads the weight of 0 as a dense tensor.*keep_masked='0'"):
        layer.weight.pow(2).sum().backward()
    layer.weight.pow(2).sum().backward()


class Foreign(nn.Module):
    """Reads the weights of its layers in every way: called, as a function, elementwise, and tied to another input."""

    def __init__(self, penalty):
        super().__init__()
        self.first, self.second = nn.Linear(12, 10), nn.Linear(10, 4)
        self.conv, self.penalty = nn.Conv2d(1, 4, 3, padding=1), penalty

    def forward(self, x):
        hidden = F.linear(x, self.first.weight, self.first.bias).relu() + self.first(x)
        y = self.second(hidden) + F.conv2d(x.view(-1, 1, 3, 4), self.conv.weight, self.conv.bias, 1, 1).mean((2, 3))
        if self.penalty:
            target = torch.linspace(-1, 1, 40, dtype=y.dtype).view(4, 10)
            y = y + 3 * (self.second.weight - target).pow(2).mean()
            y = y * (1 + F.conv2d(x.view(-1, 1, 3, 4), self.conv.weight, stride=2).mean((1, 2, 3))[:, None])
        return y


@pytest.mark.filterwarnings("ignore:.* reads the weight of .* as a dense tensor")
@pytest.mark.parametrize("penalty", [False, True])
def test_training_with_foreign_reads_coincides_with_the_masked_store(penalty):
    """What is grown depends on gradients at inactive positions, so foreign reads must contribute to those too."""
    found = []
    for store in ("masked", "packed"):
        torch.manual_seed(0)
        model = Foreign(penalty).double()
        optimizer, rewirer = packed(model, store=store, every=3)
        losses = train(model, optimizer, 20, dtype=torch.float64)
        found.append((topology(rewirer), losses))
    assert found[0][0] == found[1][0]
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-9)


def transformers():
    encoder = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    return {
        "layer": (encoder, 1),
        "stack": (nn.TransformerEncoder(encoder, 2), 1),
        "both": (nn.Transformer(16, 4, 1, 1, 32, dropout=0.0, batch_first=True), 2),
    }


@pytest.mark.parametrize("name", ["layer", "stack", "both"])
def test_torchs_transformers_train_evaluate_and_pack(name):
    """In evaluation torch has a fast path that reads the weights of the linear layers."""
    torch.manual_seed(0)
    model, inputs = transformers()[name]
    optimizer, rewirer = packed(model, every=2)
    x = [torch.randn(3, 5, 16) for _ in range(inputs)]
    for _ in range(4):
        model(*x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert rewirer.history
    assert sum(isinstance(module, Packed) for module in model.modules()) == {"layer": 4, "stack": 8, "both": 10}[name]
    assert not rewirer.store.notes
    model.eval()
    dense = rewire.to_dense(model)
    with torch.no_grad():
        torch.testing.assert_close(model(*x), dense(*x), rtol=1e-4, atol=1e-5)
        with pytest.warns(UserWarning, match="cannot be traced"):
            fast = rewire.pack(model, densest=0.9)
        torch.testing.assert_close(fast(*x), dense(*x), rtol=1e-4, atol=1e-5)
    assert any(isinstance(module, Packed) for module in fast.modules())


def test_copies_and_pickles_read_their_own_weights(layer):
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with torch.no_grad():
            other.weight_values.mul_(2)
        assert torch.equal(other.weight.detach() + 0, 2 * rewire.to_dense(layer).weight)


WRITES_TO_PARTS = {
    "rows": lambda w: w[:2].zero_(),
    "a view": lambda w: w.view(-1)[:20].fill_(0),
    "indexing a view": lambda w: w.view(-1).__setitem__(slice(0, 20), 0.0),
    "init": lambda w: nn.init.zeros_(w[:2]),
    "transposed": lambda w: w.t().mul_(0),
    "T": lambda w: w.T.mul_(0),
    "iteration": lambda w: [row.mul_(0) for row in w],
    "unbind": lambda w: w.unbind()[0].zero_(),
    "narrow": lambda w: w.narrow(0, 0, 2).zero_(),
    "diagonal": lambda w: w.diagonal().fill_(1.0),
    "squeeze": lambda w: w.squeeze().mul_(0),
    "columns": lambda w: w.split(4, dim=1)[0].zero_(),
    "inplace": lambda w: F.dropout(w, 0.9, inplace=True),
    "views of views": lambda w: w[:4].t()[1:3].data.add_(1),
    "augmented": lambda w: w[0].__iadd__(1),
    "a view under another type": lambda w: w[:2].double().contiguous().mul_(0),  # of the same type: no copy
}


@pytest.mark.parametrize("of", ["weight", "data", "grad", "detach"])
@pytest.mark.parametrize("how", list(WRITES_TO_PARTS))
def test_writing_to_a_part_is_refused(how, of, layer):
    layer(torch.randn(3, 8, dtype=torch.float64)).sum().backward()
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"cannot change the \w+ of 0: .*weight_values"):
        WRITES_TO_PARTS[how](
            {"weight": layer.weight, "detach": layer.weight.detach()}.get(of, getattr(layer.weight, of, None))
        )


def test_arrays_of_the_weight_cannot_be_written_to(layer):
    data = layer.weight.data
    for array in (layer.weight.detach().numpy(), data[:2].numpy(), data.t().numpy(), np.asarray(data)):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0


def test_parts_are_read_as_those_of_a_dense_weight(layer):
    layer.dense_read_warned = True
    dense = rewire.to_dense(nn.Sequential(layer))[0].weight
    expected = dense[1:3].t().square().sum() + dense.view(-1)[::3].sum() + sum(row.max() for row in dense)
    weight = layer.weight
    found = weight[1:3].t().square().sum() + weight.view(-1)[::3].sum() + sum(row.max() for row in weight)
    assert type(found) is torch.Tensor
    assert found.item() == pytest.approx(expected.item())
    found.backward()
    expected.backward()
    positions = layer.weight_positions.long()
    torch.testing.assert_close(layer.weight_values.grad, dense.grad.flatten()[positions])
    largest, where = weight.max(dim=0)
    assert torch.equal(largest, dense.max(dim=0).values)
    assert type(where) is torch.Tensor
    assert weight[:2].tolist() == dense[:2].tolist()
    assert weight[torch.tensor([1, 2])].detach().zero_().sum() == 0  # a copy, as of any tensor
    with pytest.raises(RuntimeError, match=r"or clone\(\) what was read"):
        nn.Parameter(weight[:2])
    copied = weight[:2].clone()
    assert copied.detach().zero_().sum() == 0
    assert torch.equal(torch.zeros(2, 8, dtype=torch.float64).copy_(weight[:2]), dense[:2])


def test_a_gradient_that_was_read_stays_what_it_was(layer):
    """Multi-task training compares the gradients of two losses."""
    x = torch.randn(3, 8, dtype=torch.float64)
    read, values = [], []
    for scale in (1.0, -2.0):
        layer.zero_grad()
        layer(x * scale).square().sum().backward()
        read.append(layer.weight.grad)
        values.append(layer.weight_values.grad.clone())
    layer.zero_grad()
    assert layer.weight.grad is None
    assert not torch.equal(*values)
    for grad, expected in zip(read, values, strict=True):
        assert torch.equal(grad.flatten()[layer.weight_positions.long()], expected)


def test_torch_autograd_grad_is_refused_instead_of_answered_with_an_older_gradient(layer):
    layer.dense_read_warned = True
    layer(torch.randn(3, 8, dtype=torch.float64)).sum().backward()
    loss = layer(torch.randn(3, 8, dtype=torch.float64)).square().sum()
    for arguments in ((layer.weight,), ([layer.bias, layer.weight],)):
        with pytest.raises(
            RuntimeError, match=r"torch.autograd.grad has no gradient of the weight of 0: .*weight_values"
        ):
            torch.autograd.grad(loss, *arguments, retain_graph=True)
    with pytest.raises(RuntimeError, match="weight_values"):
        torch.autograd.grad(outputs=loss, inputs=layer.weight, retain_graph=True)
    (found,) = torch.autograd.grad(loss, layer.weight_values, retain_graph=True)
    (inner,) = torch.autograd.grad(layer.weight.square().sum(), layer.weight_values)
    assert torch.equal(inner, 2 * layer.weight_values)
    loss.backward(inputs=[layer.weight_values])
    assert found.shape == layer.weight_values.shape


def test_a_detached_read_freezes_nothing(layer):
    layer.weight.detach().requires_grad_(False)
    layer.weight.data.requires_grad_(False)
    assert layer.weight_values.requires_grad
    with pytest.raises(RuntimeError, match="requires_grad_ cannot change the data of 0"):
        layer.weight.detach().requires_grad_(True)
    layer.weight.requires_grad_(False)
    assert not layer.weight_values.requires_grad
