"""Weights that are not called ``weight``, or whose inputs come first: trained, converted, saved and resumed."""

import copy

import pytest
import torch
from tests.model.test_kinds import Conv1D, Experts, _own_registry  # noqa: F401
from torch import nn

import rewire
from rewire.analysis.density import densities, masks
from rewire.analysis.flops import positions
from rewire.io import save_dense, to_csr
from rewire.shrinking.shrink import shrink_with_report


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.layer(x.view(-1, 2, 16)).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(16, 8, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.rnn(x.view(-1, 2, 16))[0][:, -1])


MODELS = {
    "attention": Attention,
    "conv1d": lambda: nn.Sequential(Conv1D(16, 32), nn.ReLU(), Conv1D(4, 16)),
    "experts": lambda: nn.Sequential(Experts(3, 32, 16), nn.ReLU(), nn.Linear(16, 4)),
    "recurrent": Recurrent,
}


def build(name, store="masked", method=None, seed=0):
    rewire.register(Experts, weight="up", stack=0, inputs=1, outputs=2)
    torch.manual_seed(seed)
    model = MODELS[name]().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    method = method or rewire.rigl(density=0.25, every=2, until=100)
    rewirer = rewire.sparsify(model, optimizer, method, store=store, include="*")
    return model, optimizer, rewirer


def train(model, optimizer, steps, begin=0):
    for step in range(begin, begin + steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(8, 32, generator=generator, dtype=torch.float64)
        loss = nn.functional.cross_entropy(model(x), torch.randint(4, (8,), generator=generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("name", MODELS)
def test_training_keeps_the_budget_and_zeros_in_place(name):
    model, optimizer, rewirer = build(name)
    before = rewirer.nnz
    train(model, optimizer, 7)
    assert rewirer.nnz == before == sum(int(mask.sum()) for mask in masks(model).values())
    assert sum(sum(one.grown) for one in rewirer.history) > 0
    for layer in rewirer.layers:
        assert not layer.parameter[~layer.mask].any()
        assert not optimizer.state[layer.parameter]["momentum_buffer"][~layer.mask].any()
    names = {name for name in model.state_dict() if name.endswith("_mask")}
    assert names == {f"{n}_mask" for n, p in model.named_parameters() if p.dim() > 1}


@pytest.mark.parametrize("name", MODELS)
def test_the_packed_store_makes_the_same_edits(name):
    model, optimizer, rewirer = build(name)
    other, other_optimizer, packed = build(name, store="packed")
    train(model, optimizer, 5)
    train(other, other_optimizer, 5)
    for one, two in zip(rewirer.layers, packed.layers, strict=True):
        assert torch.equal(one.active(), two.active())
    dense, again = rewire.to_dense(model).state_dict(), rewire.to_dense(other).state_dict()
    assert dense.keys() == again.keys()
    assert all(torch.allclose(dense[n], again[n]) for n in dense)
    if name == "attention":
        assert not packed.store.notes


@pytest.mark.parametrize("store", ["masked", "packed"])
@pytest.mark.parametrize("name", MODELS)
def test_a_resumed_training_goes_on_bit_for_bit(name, store):
    model, optimizer, rewirer = build(name, store)
    train(model, optimizer, 3)
    saved = copy.deepcopy([one.state_dict() for one in (model, optimizer, rewirer)])
    train(model, optimizer, 4, begin=3)
    again = build(name, store, seed=1)
    for one, state in zip(again, saved, strict=True):
        one.load_state_dict(state)
    train(*again[:2], 4, begin=3)
    mine, other = model.state_dict(), again[0].state_dict()
    assert all(torch.equal(mine[key], other[key]) for key in mine)


@pytest.mark.parametrize("name", MODELS)
def test_files_conversions_and_removal(name, tmp_path):
    model, optimizer, rewirer = build(name)
    train(model, optimizer, 3)
    x = torch.randn(2, 32, dtype=torch.float64)
    rewire.save_sparse(model, tmp_path / "sparse.safetensors", x)
    save_dense(model, tmp_path / "dense.safetensors", x)
    plain = rewire.to_dense(model)
    assert not any(key.endswith("_mask") for key in plain.state_dict())
    assert torch.equal(plain(x), model(x))
    for file in ("sparse", "dense"):
        fresh = MODELS[name]().double()
        rewire.load_sparse(tmp_path / f"{file}.safetensors", fresh)
        assert torch.equal(fresh(x), model(x))
    packed = MODELS[name]().double()
    state = rewire.load_sparse(tmp_path / "sparse.safetensors", packed, packed=True)
    assert torch.allclose(packed(x), model(x))
    assert {n: int(m.sum()) for n, m in masks(packed).items()} == {one.name: one.nnz for one in rewirer.layers}
    assert to_csr(model).keys() == {key.removesuffix("_mask") for key in state if key.endswith("_mask")}
    rewirer.remove()
    assert model.state_dict().keys() == MODELS[name]().state_dict().keys()


def test_attention_in_evaluation_takes_torchs_fast_path_and_agrees():
    model = build("attention")[0].float()
    x = torch.randn(3, 32)
    with torch.no_grad():
        assert torch.allclose(model.eval()(x), model.train()(x), atol=1e-5)


def test_the_table_tells_the_density_of_all_parameters():
    model = nn.Sequential(nn.MultiheadAttention(8, 2, bias=False), nn.Linear(8, 8, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.25), exclude=nn.MultiheadAttention)
    # 192 weights of attention stay dense, 32 of 128 others exist: 224 of 320.
    assert rewirer.density == 0.25
    assert rewirer.overall_density == 0.7
    printed = str(rewirer)
    assert "density 0.25 of the sparse layers, 0.70 of all parameters: 60% of them stay dense" in printed
    assert "not sparse: 0.in_proj_weight (excluded)" in printed
    assert "all parameters" in printed


def test_all_weights_of_an_encoder_are_sparse():
    layer = nn.TransformerEncoderLayer(16, 2, 32, bias=False)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.2))
    assert rewirer.left_out == {}
    assert rewirer.overall_density < 0.22  # only norms are dense; it would be half if in_proj_weight were


def test_layers_are_kept_masked_by_pattern_or_type(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Conv2d(1, 1, 3), nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = rewire.static(density=0.5)
    with pytest.raises(ValueError, match="keep_masked='9' matches no layer; the layers are 0, 1, 2, 3"):
        rewire.sparsify(model, optimizer, method, store="packed", keep_masked="9")
    rewirer = rewire.sparsify(model, optimizer, method, store="packed", keep_masked=["0", nn.Conv2d])
    assert rewirer.store.notes == {"0": "kept masked", "1": "kept masked"}
    assert [layer.parameter.dim() for layer in rewirer.layers] == [2, 4, 1, 1]
    assert "masked: 0 (kept masked)" in str(rewirer)
    rewire.save_sparse(model, tmp_path / "file.safetensors")
    rewire.load_sparse(tmp_path / "file.safetensors", model)  # a packed model stays as it is packed
    assert [module._parameters["weight"].dim() for module in model] == [2, 4, 1, 1]


def test_densities_and_uses_of_every_layer():
    model = build("attention", method=rewire.static(density=0.25, start="uniform"))[0].float()
    found = {one.spec.name: (one.nnz, one.units.neurons, one.units.inputs) for one in densities(model)}
    assert found["layer.self_attn.in_proj_weight"] == (192, 48, 16)
    with pytest.warns(UserWarning, match="not counted, .*: layer.self_attn.in_proj_weight"):
        applied = positions(model, torch.zeros(1, 32))
    assert applied["head"] == 1
    assert positions(nn.Sequential(Conv1D(5, 3)), torch.zeros(1, 7, 3)) == {"0": 7}


@pytest.mark.parametrize("name", ["attention", "conv1d", "recurrent"])
def test_topologies_go_by_the_names_of_the_layers(name):
    model, optimizer, rewirer = build(name)
    train(model, optimizer, 3)
    topology, plain = masks(model), rewire.to_dense(model).eval()
    x = torch.randn(3, 32, dtype=torch.float64)
    if name != "recurrent":  # which torch.export does not trace
        small, _ = shrink_with_report(plain, x, topology=topology)
        assert torch.allclose(small(x), plain(x))
    for start in (topology, model):
        again = MODELS[name]().double()
        method = rewire.static(density=rewirer.density, start=start)
        other = rewire.sparsify(again, torch.optim.SGD(again.parameters(), lr=0.1), method, include="*")
        for one, two in zip(rewirer.layers, other.layers, strict=True):
            assert torch.equal(one.active(), two.active())
