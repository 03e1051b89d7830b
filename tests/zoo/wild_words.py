"""Models of words written as they are in the wild: scans, mixtures, recurrences, graphs, adapters.

Each has the habits of the public model that it is named after, in a few lines of its own.
"""

import torch
import torch.nn.functional as F
from tests.zoo.hub import WORDS
from torch import nn

import rewire


class Mamba(nn.Module):
    """A selective scan; the weight of ``dt_proj`` is read so that its bias can be added in another precision."""

    def __init__(self, width=12, inner=24, state=4, rank=3):
        super().__init__()
        self.embed, self.rank, self.state = nn.Embedding(WORDS, width), rank, state
        self.in_proj = nn.Linear(width, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
        self.x_proj = nn.Linear(inner, rank + 2 * state, bias=False)
        self.dt_proj = nn.Linear(rank, inner)
        self.A_log = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj, self.head = nn.Linear(inner, width, bias=False), nn.Linear(width, WORDS)

    def forward(self, words):
        x, gate = self.in_proj(self.embed(words)).chunk(2, -1)
        x = F.silu(self.conv1d(x.transpose(1, 2))[..., : words.shape[1]].transpose(1, 2))
        delta, b, c = self.x_proj(x).split([self.rank, self.state, self.state], -1)
        delta = F.softplus((self.dt_proj.weight @ delta.transpose(1, 2)).transpose(1, 2) + self.dt_proj.bias)
        decay = torch.exp(delta[..., None] * -self.A_log.exp())
        h, outputs = torch.zeros_like(decay[:, 0]), []
        for t in range(words.shape[1]):
            h = decay[:, t] * h + (delta[:, t] * x[:, t])[..., None] * b[:, t, None]
            outputs.append((h * c[:, t, None]).sum(-1))
        y = torch.stack(outputs, 1) + x * self.D
        return self.head(self.out_proj(y * F.silu(gate)))


class LanguageLSTM(nn.Module):
    """The word language model of many tutorials: two layers, and an output tied to the embedding."""

    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.encoder, self.rnn, self.decoder = nn.Embedding(WORDS, 12), kind(12, 12, 2), nn.Linear(12, WORDS)
        self.hidden = nn.Linear(12, 12)
        self.decoder.weight = self.encoder.weight

    def forward(self, words):
        return self.decoder(torch.tanh(self.hidden(self.rnn(self.encoder(words.t()))[0])))


class ExpertList(nn.Module):
    """A mixture whose experts are modules, of which a batch may leave some without a token."""

    def __init__(self, width=12, experts=4):
        super().__init__()
        self.embed, self.gate = nn.Embedding(WORDS, width), nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 16), nn.SiLU(), nn.Linear(16, width)) for _ in range(experts)
        )
        self.head = nn.Linear(width, WORDS)

    def forward(self, words):
        x = self.embed(words).flatten(0, 1)
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == index)
            if len(token):
                out = out.index_add(0, token, expert(x[token]) * weights[token, slot, None])
        return self.head(x + out)


class StackedExperts(nn.Module):
    """A mixture whose experts are one parameter: a type of its author's own, which is registered below."""

    def __init__(self, width=12, experts=4):
        super().__init__()
        self.embed, self.gate = nn.Embedding(WORDS, width), nn.Linear(width, experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(experts, width, 16) * 0.3)
        self.w2 = nn.Parameter(torch.randn(experts, 16, width) * 0.3)
        self.head = nn.Linear(width, WORDS)

    def forward(self, words):
        x = self.embed(words)
        hidden = F.silu(torch.einsum("bti,eih->bteh", x, self.w1))
        y = torch.einsum("bteh,eho->bteo", hidden, self.w2)
        return self.head(x + (y * self.gate(x).softmax(-1)[..., None]).sum(2))


class Encoder(nn.Module):
    """torch's own encoder, which in evaluation reads the weights of its layers in one fast function."""

    def __init__(self, **options):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True, **options)
        self.embed = nn.Embedding(WORDS, 16)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, WORDS)

    def forward(self, words):
        return self.head(self.encoder(self.embed(words)))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)
        self.transformer = nn.Transformer(16, 2, 1, 1, 24, dropout=0.0, batch_first=True)

    def forward(self, words):
        return self.head(self.transformer(self.embed(words), self.embed(words.flip(1))))


class Recommender(nn.Module):
    """DLRM: bags of words, an MLP, and the products of all pairs."""

    def __init__(self):
        super().__init__()
        self.bag, self.bottom = nn.EmbeddingBag(WORDS, 8), nn.Linear(6, 8)
        self.bilinear, self.top = nn.Bilinear(8, 8, 6), nn.Linear(6 + 1, 2)

    def forward(self, words):
        one, two = self.bag(words), F.relu(self.bottom(words.double() / WORDS))
        return self.top(torch.cat([self.bilinear(one, two), (one * two).sum(1, keepdim=True)], 1))


class GraphConvolution(nn.Module):
    """The layer of early graph networks: a weight with inputs first, multiplied by hand."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / 4)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x, adjacency):
        return adjacency @ (x @ self.weight) + self.bias


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 12), nn.Linear(12, 5)
        self.first, self.second = GraphConvolution(12, 16), GraphConvolution(16, 12)

    def forward(self, words):
        adjacency = (words[:, :, None] % 3 == words[:, None] % 3).to(self.head.weight.dtype)
        adjacency = adjacency / adjacency.sum(-1, keepdim=True)
        return self.head(self.second(F.relu(self.first(self.embed(words), adjacency)), adjacency))


class LoRALinear(nn.Linear):
    def __init__(self, inputs, outputs, rank=2):
        super().__init__(inputs, outputs)
        self.lora_A = nn.Parameter(torch.randn(rank, inputs) / 4)
        self.lora_B = nn.Parameter(torch.randn(outputs, rank) / 4)

    def forward(self, x):
        return super().forward(x) + x @ self.lora_A.t() @ self.lora_B.t()


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.first, self.head = nn.Embedding(WORDS, 12), LoRALinear(12, 16), LoRALinear(16, 5)

    def forward(self, words):
        return self.head(F.relu(self.first(self.embed(words))))


class Parametrized(nn.Module):
    """Weight norm and spectral norm among ordinary layers."""

    def __init__(self):
        super().__init__()
        self.embed, self.tail = nn.Embedding(WORDS, 12), nn.Linear(12, 5)
        self.temporal = nn.utils.parametrizations.weight_norm(nn.Conv1d(12, 12, 3, padding=2))
        self.middle = nn.utils.parametrizations.spectral_norm(nn.Linear(12, 12))

    def forward(self, words):
        x = self.embed(words).transpose(1, 2)
        x = F.relu(self.temporal(x)[..., :-2]).transpose(1, 2)
        return self.tail(F.relu(self.middle(x)))


rewire.register(StackedExperts, weight="w1", stack=0, inputs=1, outputs=2)
rewire.register(StackedExperts, weight="w2", stack=0, inputs=1, outputs=2)
rewire.register(GraphConvolution, inputs=0, outputs=1)
