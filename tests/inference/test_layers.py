"""Which layers can be packed for inference: weights that are shared, and weights that the model reads itself."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from tests.graphs import agrees, program, sample, scattered
from torch import nn
from transformers.pytorch_utils import Conv1D

import rewire
from rewire.nn.packed import Packed


def names_of_packed(model):
    return [name for name, module in model.named_modules() if isinstance(module, Packed)]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encode, self.middle, self.decode = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.decode.weight = self.encode.weight

    def forward(self, x):
        return self.decode(F.relu(self.middle(F.relu(self.encode(x)))))


@pytest.mark.parametrize("size", [1, 5])
def test_layers_that_share_a_weight_are_packed_and_still_share_it(size):
    model = scattered(Tied())
    fast, x = rewire.pack(model), torch.randn(size, 8)
    agrees(fast, model, x)
    assert names_of_packed(fast) == ["encode", "middle", "decode"]
    assert fast.encode.weight_values is fast.decode.weight_values
    assert fast.encode.weight_positions is fast.decode.weight_positions
    assert len(fast.encode.weight_values) == model.encode.weight.count_nonzero()
    assert [name for name, _ in fast.named_parameters()].count("decode.weight") == 0
    other = copy.deepcopy(fast)
    assert other.encode.weight_values is other.decode.weight_values
    agrees(other, model, x)


def test_a_packed_model_that_shares_weights_loads_and_unpacks():
    model, x = scattered(Tied()), sample(8)
    fast, file = rewire.pack(model), io.BytesIO()
    torch.save(fast.state_dict(), file)
    file.seek(0)
    other = rewire.pack(scattered(Tied(), 0.1, seed=3))
    other.load_state_dict(torch.load(file))
    agrees(other, model, x)
    assert program(other, x) is not None
    linear = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    linear[1].weight = linear[0].weight
    dense = rewire.to_dense(rewire.pack(scattered(linear)))
    assert dense.get_submodule("0").weight is dense.get_submodule("1").weight
    assert torch.equal(dense.get_submodule("0").weight, linear[0].weight)
    agrees(dense, linear, x)


def test_a_convolution_that_shares_its_weight_and_has_batch_norm_behind_it():
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=2, dilation=2)]
    convolutions[1].weight = convolutions[0].weight
    model = scattered(nn.Sequential(convolutions[0], nn.ReLU(), convolutions[1], nn.BatchNorm2d(4), nn.ReLU()))
    agrees(rewire.pack(model, densest=1.0), model, torch.randn(3, 4, 8, 8))


def test_a_weight_that_an_embedding_shares_stays_dense():
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.body, self.head = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 9, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.body(self.embed(tokens)))

    model = scattered(Language())
    fast = rewire.pack(model)
    assert names_of_packed(fast) == ["body"]
    assert fast.head.weight is fast.embed.weight
    agrees(fast, model, torch.randint(9, (2, 3)))


def test_measuring_packs_a_shared_weight_for_all_of_its_layers_or_none(monkeypatch):
    model, x = scattered(Tied()), torch.randn(4, 8)
    answers = iter([True, True, False])
    monkeypatch.setattr("rewire.inference.choose.is_faster_packed", lambda layer, given: next(answers))
    fast = rewire.pack(model, x, measure=True)
    assert names_of_packed(fast) == ["middle"]
    agrees(fast, model, x)


class Reads(nn.Module):
    """As models in the wild read the weights of their layers."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.how, self.qkv, self.norm = how, nn.Linear(8, 8, bias=False), nn.BatchNorm2d(4)
        self.bias, self.conv, self.out = nn.Parameter(torch.randn(8)), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(8, 8)

    def forward(self, x):
        if self.how == "never called":
            return self.out(F.linear(input=x, weight=self.qkv.weight, bias=self.bias))
        if self.how == "called as well":
            return F.relu(self.qkv(x)) + F.linear(x, self.qkv.weight, self.bias)
        if self.how == "normalised":
            return self.out(F.linear(x, F.normalize(self.qkv.weight), self.bias))
        image = x.view(-1, 4, 1, 2)
        read = F.conv2d(image, self.conv.weight, self.conv.bias, padding=1 if self.how == "convolution" else 3)
        return self.norm(self.conv(image)).flatten(1) + read.mean((2, 3)).repeat(1, 2)


@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize(
    ("how", "expected"),
    [("never called", ["qkv", "out"]), ("called as well", ["qkv"]), ("convolution", ["conv"])],
)
def test_a_weight_that_is_read_as_the_layer_reads_it_is_packed(how, expected, size):
    model = scattered(Reads(how))
    fast = rewire.pack(model)
    assert sorted(names_of_packed(fast)) == sorted(expected)
    agrees(fast, model, torch.randn(size, 8))


@pytest.mark.parametrize(("how", "name"), [("normalised", "qkv"), ("other padding", "conv")])
def test_a_weight_that_is_read_otherwise_stays_dense_and_is_named(how, name):
    model = scattered(Reads(how))
    with pytest.warns(UserWarning, match=f"stay dense, because the model reads their weight .*: {name}"):
        fast = rewire.pack(model)
    assert name not in names_of_packed(fast)
    agrees(fast, model, torch.randn(6, 8))


def test_a_model_that_cannot_be_traced_reads_packed_weights_too():
    class Branching(Reads):
        def forward(self, x):
            return super().forward(x) if x.sum() > -1e9 else x

    for how in ("never called", "called as well", "normalised", "convolution", "other padding"):
        model = scattered(Branching(how))
        with pytest.warns(UserWarning, match="cannot be traced"):
            fast = rewire.pack(model)
        assert len(names_of_packed(fast)) == 3
        agrees(fast, model, torch.randn(6, 8))


# ---- layers of transformers


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True, **options)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.attention(query=x, key=x, value=x, need_weights=False)[0])


class Separate(nn.Module):
    """Queries, keys and values of their own: the input projections are three weights, which have no kernel."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, kdim=6, vdim=6, batch_first=True)

    def forward(self, x):
        return self.attention(x, x[..., :6], x[..., :6], need_weights=False)[0]


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1)


PROJECTIONS = ["layers.0.self_attn", "layers.0.self_attn.out_proj"]


@pytest.mark.filterwarnings("ignore:the model cannot be traced")
@pytest.mark.parametrize("measure", [False, True])
@pytest.mark.parametrize(
    ("build", "by_density", "always"),
    [
        (Attention, ["head"], ["attention", "attention.out_proj"]),
        (lambda: Attention(add_bias_kv=True), ["head"], ["attention", "attention.out_proj"]),
        (Separate, [], ["attention.out_proj"]),
        (encoder, ["layers.0.linear1", "layers.0.linear2"], PROJECTIONS),
        (lambda: nn.Sequential(Conv1D(32, 16), nn.ReLU(), Conv1D(4, 32)), ["0", "2"], []),
    ],
    ids=["attention", "biases", "separate", "encoder", "conv1d"],
)
def test_attention_and_conv1d_are_packed(build, by_density, always, measure):
    model = scattered(build(), 0.1)
    fast = rewire.pack(model, torch.randn(2, 5, 16) if measure else None, measure=measure)
    names = set(names_of_packed(fast))
    assert names >= set(always)
    assert measure or names == {*by_density, *always}
    for batch in (1, 2, 15, 33):
        for tokens in (1, 5):
            agrees(fast, model, torch.randn(batch, tokens, 16))


def test_an_input_projection_that_the_model_reads_otherwise_stays_dense():
    class Penalty(Attention):
        def forward(self, x):
            return super().forward(x) + self.attention.in_proj_weight.square().sum()

    model = scattered(Penalty(), 0.1)
    with pytest.warns(UserWarning, match="stay dense, because the model reads their weight.*: attention$"):
        fast = rewire.pack(model)
    assert names_of_packed(fast) == ["attention.out_proj", "head"]
    agrees(fast, model, torch.randn(2, 5, 16))
