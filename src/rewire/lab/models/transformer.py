"""The blocks of the transformers: attention and an MLP, each added to its normalised input."""

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from rewire.lab.models.layers import scaled

HEADS, DEPTH = 4, 4


def dimension(width: float) -> int:
    """Features of a token: 128 at width 1, and always a multiple of the heads."""
    return HEADS * scaled(32, width)


class Attention(nn.Module):
    """Multi-head self-attention; ``causal``: a token sees only those before it."""

    def __init__(self, features: int, tokens: int, *, causal: bool) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(features, 3 * features)
        self.project = nn.Linear(features, features)
        self.shape, self.causal = (tokens, HEADS, features // HEADS), causal

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, tokens, features) to the same shape."""
        parts = self.query_key_value(x).chunk(3, dim=-1)
        q, k, v = (parts[i].unflatten(-1, self.shape[1:]).transpose(1, 2) for i in range(3))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return cast(Tensor, self.project(attended.transpose(1, 2).flatten(2)))


class Block(nn.Module):
    """Attention, then an MLP with four times the features."""

    def __init__(self, features: int, tokens: int, *, causal: bool) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(features), nn.LayerNorm(features)
        self.attention = Attention(features, tokens, causal=causal)
        self.mlp = nn.Sequential(nn.Linear(features, 4 * features), nn.GELU(), nn.Linear(4 * features, features))

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, tokens, features) to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        return x + cast(Tensor, self.mlp(self.mlp_norm(x)))


def blocks(features: int, tokens: int, *, causal: bool = False) -> nn.Sequential:
    """All blocks and the last normalisation."""
    return nn.Sequential(*(Block(features, tokens, causal=causal) for _ in range(DEPTH)), nn.LayerNorm(features))


def initialise_transformer(model: nn.Module) -> nn.Module:
    """Weights and embeddings from a normal distribution of standard deviation 0.02, as in GPT-2; biases zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model
