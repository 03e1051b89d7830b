"""A small vision transformer (Dosovitskiy et al., 2021)."""

from typing import cast

import torch
from torch import Tensor, nn

from rewire.lab.models.layers import Image, check_arguments
from rewire.lab.models.registry import register
from rewire.lab.models.transformer import blocks, dimension, initialise_transformer

SIDE = 8  # patches along the shorter side of an image


class VisionTransformer(nn.Module):
    """Patches become tokens, and the mean of the tokens is classified."""

    def __init__(self, classes: int, image: Image, features: int) -> None:
        super().__init__()
        patch = max(1, min(image[1:]) // SIDE)
        tokens = (image[1] // patch) * (image[2] // patch)
        self.patches = nn.Conv2d(image[0], features, patch, stride=patch)
        self.positions = nn.Embedding(tokens, features)
        self.register_buffer("order", torch.arange(tokens), persistent=False)
        self.blocks = blocks(features, tokens)
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, classes)."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions(self.order)
        return cast(Tensor, self.head(self.blocks(tokens).mean(1)))


@register("vit", label="ViT")
def vit(*, classes: int, image: Image, width: float = 1.0) -> nn.Module:
    """Vision transformer with four blocks of 128 features, four heads and 8x8 patches (Dosovitskiy et al., 2021).

    Tokens are averaged before the classifier; images whose sides differ have more than eight patches on the longer one.
    """
    check_arguments("vit", classes, image, width, smallest=1)
    return initialise_transformer(VisionTransformer(classes, image, dimension(width)))
