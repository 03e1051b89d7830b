"""A small character-level language model of the GPT kind (Radford et al., 2019)."""

import math
from typing import cast

import torch
from torch import Tensor, nn

from rewire.lab.models.layers import Image, check_arguments
from rewire.lab.models.registry import register
from rewire.lab.models.transformer import blocks, dimension, initialise_transformer


class CharacterModel(nn.Module):
    """Predicts the character after each character of a text."""

    def __init__(self, characters: int, tokens: int, features: int) -> None:
        super().__init__()
        self.largest = characters - 1
        self.characters = nn.Embedding(characters, features)
        self.positions = nn.Embedding(tokens, features)
        self.register_buffer("order", torch.arange(tokens), persistent=False)
        self.blocks = blocks(features, tokens, causal=True)
        self.head = nn.Linear(features, characters)

    def forward(self, x: Tensor) -> Tensor:
        """Map the numbers of characters (N, 1, 1, T), as floats, to scores (N, characters, T)."""
        numbers = x.flatten(1).round().long().clamp(0, self.largest)
        tokens = self.characters(numbers) + self.positions(self.order)
        return cast(Tensor, self.head(self.blocks(tokens))).transpose(1, 2)


@register("gpt", label="GPT")
def gpt(*, classes: int, image: Image, width: float = 1.0) -> nn.Module:
    """Character-level GPT with four causal blocks of 128 features and four heads (Radford et al., 2019).

    For texts: an image of T pixels is a text of T characters, classes are the characters, and each position gets a
    prediction of the next one.
    """
    check_arguments("gpt", classes, image, width, smallest=1)
    return initialise_transformer(CharacterModel(classes, math.prod(image), dimension(width)))
