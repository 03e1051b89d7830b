"""Architectures written as they are in the wild, by the names that the table shows."""

import torch
from tests.zoo import wild_attention as attention
from tests.zoo import wild_vision as vision
from tests.zoo import wild_words as words
from tests.zoo.hub import Entry, image, text
from torch import nn


def _entry(name, build, inputs, **options):
    def made():
        torch.manual_seed(0)
        return build().double()

    return Entry(name, made, inputs, options)


def entries() -> list[Entry]:
    """Every architecture of this file."""
    images = {
        "BEiT-like": attention.Beit,
        "Swin-like": attention.Swin,
        "EfficientNet-like": vision.EfficientNet,
        "MobileNetV3-like": lambda: vision.EfficientNet(nn.Conv2d, nn.Hardswish),
        "same padding": vision.SamePadding,
        "ConvNeXt-like": vision.ConvNeXt,
        "CondConv-like": vision.CondConvNet,
        "U-Net-like": vision.UNet,
        "ResNet-like": vision.ResNet,
        "ShuffleNet-like": vision.ShuffleNet,
        "MLP-Mixer-like": attention.Mixer,
        "CLIP attention pool": attention.AttentionPool,
        "weight standardisation": vision.StandardisedNet,
        "penalised weights": vision.Penalised,
        "Siamese, shared weights": vision.Siamese,
        "PointNet-like": vision.PointNet,
        "3-D network": vision.Volume,
    }
    texts = {
        "Mamba-like": words.Mamba,
        "LSTM language model": words.LanguageLSTM,
        "GRU language model": lambda: words.LanguageLSTM(nn.GRU),
        "experts in a list": words.ExpertList,
        "experts in one parameter": words.StackedExperts,
        "nn.TransformerEncoder": words.Encoder,
        "nn.TransformerEncoder, norm first": lambda: words.Encoder(norm_first=True),
        "nn.Transformer": words.Translator,
        "DLRM-like": words.Recommender,
        "graph convolutions": words.GraphNet,
        "LoRA": words.Adapted,
        "weight and spectral norm": words.Parametrized,
    }
    asked = [_entry("LSTM language model, on request", words.LanguageLSTM, text, include=["rnn", "hidden"])]
    return [_entry(*i, image) for i in images.items()] + [_entry(*i, text) for i in texts.items()] + asked
