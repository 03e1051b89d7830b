"""Vision transformers written as they are in the wild: weights read by functions, mixed and shared."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class BeitAttention(nn.Module):
    """timm's BEiT: biases for queries and values only, so ``qkv`` is applied by a function that reads its weight."""

    def __init__(self, width=16, heads=2, tokens=16):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.relative_position_bias_table = nn.Parameter(torch.randn(2 * tokens - 1, heads) * 0.1)
        places = torch.arange(tokens)
        self.register_buffer("relative_position_index", places[:, None] - places[None] + tokens - 1)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        bias = torch.cat([self.q_bias, torch.zeros_like(self.v_bias), self.v_bias])
        q, k, v = F.linear(x, self.qkv.weight, bias).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        scores = scores + self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Patches(nn.Module):
    def __init__(self, width=16, patch=8):
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, patch)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Beit(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.norm1, self.norm2 = Patches(), nn.LayerNorm(16), nn.LayerNorm(16)
        self.attention = BeitAttention()
        self.mlp = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.patches(x)
        x = x + self.attention(self.norm1(x))
        return self.head((x + self.mlp(self.norm2(x))).mean(1))


class SwinBlock(nn.Module):
    """Torchvision's Swin: windows, a cyclic shift with an ``attn_mask`` buffer, weights handed to a function."""

    def __init__(self, width=16, side=4, window=2):
        super().__init__()
        self.window, self.norm, self.norm2 = window, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width))
        area = (torch.arange(side) >= side - window // 2).long()
        label = self._split((area[:, None] * 2 + area[None])[None, :, :, None].double())[..., 0]
        self.register_buffer("attn_mask", (label[:, None] != label[:, :, None]).double() * -100)

    def _split(self, x):
        size = self.window
        x = x.unfold(1, size, size).unfold(2, size, size)
        return x.permute(0, 1, 2, 4, 5, 3).reshape(-1, size * size, x.shape[3])

    def forward(self, x):
        shifted = self._split(torch.roll(self.norm(x), (-1, -1), (1, 2)))
        y = _window_attention(shifted, self.qkv.weight, self.qkv.bias, self.proj.weight, self.proj.bias, self.attn_mask)
        rows, size = x.shape[1] // self.window, self.window
        y = y.view(-1, rows, rows, size, size, x.shape[3]).permute(0, 1, 3, 2, 4, 5).reshape(x.shape)
        x = x + torch.roll(y, (1, 1), (1, 2))
        return x + self.mlp(self.norm2(x))


def _window_attention(x, qkv_weight, qkv_bias, proj_weight, proj_bias, mask):
    q, k, v = F.linear(x, qkv_weight, qkv_bias).chunk(3, -1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask.repeat(len(x) // len(mask), 1, 1)
    return F.linear(scores.softmax(-1) @ v, proj_weight, proj_bias)


class Swin(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.block, self.head = nn.Conv2d(3, 16, 8, 8), SwinBlock(), nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.block(self.patches(x).permute(0, 2, 3, 1)).mean((1, 2)))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.norm = Patches(), nn.LayerNorm(16)
        self.tokens = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 16))
        self.channels = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.patches(x)
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.channels(x)).mean(1))


class AttentionPool(nn.Module):
    """OpenAI's CLIP: four Linear layers whose weights are handed to torch's attention function; a bare projection."""

    def __init__(self, width=16):
        super().__init__()
        self.patches = Patches(width)
        self.positional_embedding = nn.Parameter(torch.randn(17, width) / 4)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.c_proj = nn.Linear(width, 12)
        self.text_projection = nn.Parameter(torch.randn(12, 8) / 4)

    def forward(self, x):
        x = self.patches(x).transpose(0, 1)
        x = torch.cat([x.mean(0, keepdim=True), x]) + self.positional_embedding[:, None]
        biases = torch.cat([self.q_proj.bias, self.k_proj.bias, self.v_proj.bias])
        y, _ = F.multi_head_attention_forward(
            *(x[:1], x, x, x.shape[-1], 2, None, biases, None, None, False, 0.0),
            *(self.c_proj.weight, self.c_proj.bias),
            use_separate_proj_weight=True,
            q_proj_weight=self.q_proj.weight,
            k_proj_weight=self.k_proj.weight,
            v_proj_weight=self.v_proj.weight,
            need_weights=False,
        )
        return y[0] @ self.text_projection
