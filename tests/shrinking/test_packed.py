"""A shrunk network that holds the weights that exist and no others."""

import pytest
import torch
from tests.shrinking.small import linear, same, wired
from torch import nn

import rewire
from rewire import shrink
from rewire.io import save_sparse
from rewire.nn.packed import PackedConv2d, PackedLinear
from rewire.shrinking.shrink import shrink_with_report
from rewire.stores.convert import to_masked


def network():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, 3)),
    )
    return model.eval()


def sparse(store):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewire.sparsify(model, optimizer, rewire.static(density=0.05, start="uniform"), store=store)
    for _ in range(3):  # batch norm and biases leave their first values
        model.train()(torch.randn(8, 1, 8, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


X = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def test_by_hand():
    # Neuron 1 has no inputs and is 2: 20 and 60 go into the biases, and its column goes. What is left is [1], [3].
    model = wired(nn.Sequential(linear([[1, 0], [0, 0]], [0.5, 2]), nn.ReLU(), linear([[1, 10], [3, 30]], [0.25, 0])))
    small = shrink(model, torch.zeros(1, 2), packed=True)
    assert isinstance(small[0], PackedLinear)
    assert (small[0].weight_values.tolist(), small[0].weight_positions.tolist()) == ([1], [0])
    assert (small[2].weight_values.tolist(), small[2].weight_positions.tolist()) == ([1, 3], [0, 1])
    assert small[2].bias.tolist() == [20.25, 60]
    same(model, small, 2)


def test_a_dead_layer_holds_no_value():
    model = wired(nn.Sequential(linear([[1, 2], [3, 4]]), linear([[0, 0], [0, 0]], [5, 7]), linear([[1, 2]], [1])))
    with pytest.warns(UserWarning, match="no signal passes"):
        small = shrink(model, torch.zeros(1, 2), packed=True)
    assert [len(layer.weight_values) for layer in small] == [0, 0, 1]  # the last one reads the constant that stands in
    same(model, small, 2)


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_it_is_the_same_function_smaller_and_packed(store):
    model = sparse(store)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    small = shrink(model, X[:1], packed=True)
    assert isinstance(small[0], PackedConv2d)
    assert small[7].in_features < 192
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in shrink(model, X[:1]).parameters()) / 5
    torch.testing.assert_close(small(X), model(X), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(rewire.pack(small)(X), model(X), rtol=1e-4, atol=1e-6)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_from_either_store_it_is_the_same():
    masked, packed = (shrink(sparse(store), X[:1], packed=True) for store in ("masked", "packed"))
    for one, other in zip(masked.modules(), packed.modules(), strict=True):
        assert type(one) is type(other)
        if isinstance(one, (PackedConv2d, PackedLinear)):
            assert one.weight_positions.tolist() == other.weight_positions.tolist()


def test_it_goes_on_training():
    small = shrink(sparse("masked"), X[:1], packed=True).train()
    optimizer = torch.optim.SGD(small.parameters(), lr=0.05)
    goal, losses = torch.randn(5, 3, generator=torch.Generator().manual_seed(2)), []
    for _ in range(20):
        loss = (small(X) - goal).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("packed", [False, True])
def test_it_is_written_and_read_back(tmp_path, packed):
    small, again = shrink(sparse("masked"), X[:1], packed=True), network()
    save_sparse(small, tmp_path / "a", X)
    rewire.load_sparse(tmp_path / "a", again, packed=packed)
    assert isinstance(again[0], PackedConv2d) is packed
    torch.testing.assert_close(again(X), small(X), rtol=1e-5, atol=1e-7)
    if packed:
        assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in small.state_dict().items())


def test_a_packed_model_takes_a_file_of_another_size(tmp_path):
    small, other = shrink(sparse("masked"), X[:1]), sparse("packed")
    save_sparse(small, tmp_path / "a")
    rewire.load_sparse(tmp_path / "a", other)
    assert isinstance(other[0], PackedConv2d)
    torch.testing.assert_close(other.eval()(X), small(X), rtol=1e-4, atol=1e-6)


def test_a_shared_weight_stays_masked():
    first, second = linear([[1, 2], [0, 3]], [0, 3]), linear([[1, 2], [0, 3]], [0, 3])
    second.weight = first.weight
    model = wired(nn.Sequential(first, nn.ReLU(), second, linear([[1, 0]])))
    small = shrink_with_report(model, torch.zeros(1, 2), packed=True)[0]
    assert small[0].weight is small[2].weight
    assert small[0].weight.shape == (2, 2)
    assert isinstance(small[3], PackedLinear)
    same(model, small, 2)


def test_what_was_packed_for_inference_is_not_taken_apart():
    fast = rewire.pack(sparse("masked"))
    for use in (rewire.to_dense, to_masked, lambda model: shrink(model, X)):
        with pytest.raises(ValueError, match="was packed for inference"):
            use(fast)


def test_masks_cannot_be_left_away_from_a_packed_model():
    with pytest.raises(ValueError, match="choose one"):
        shrink(sparse("masked"), X, masks=False, packed=True)
