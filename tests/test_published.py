"""Against figures published elsewhere."""

import pytest
import torch

from rewire.core import LayerSpec
from rewire.parts import ErdosRenyiKernel, Explicit


def resnet50():
    """Weights of ResNet-50 at 224 pixels, each with the number of positions it is applied at."""
    layers = [(LayerSpec("conv1", torch.Size([64, 3, 7, 7])), 112 * 112)]
    inputs = 64
    for stage, (planes, blocks, size) in enumerate([(64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)]):
        for block in range(blocks):
            before = size * 2 if block == 0 and stage else size  # the 3x3 convolution halves the map
            shapes = [
                ([planes, inputs, 1, 1], before),
                ([planes, planes, 3, 3], size),
                ([4 * planes, planes, 1, 1], size),
            ]
            if block == 0:
                shapes.append(([4 * planes, inputs, 1, 1], size))
            layers += [(LayerSpec(f"{stage}.{block}.{i}", torch.Size(s)), n * n) for i, (s, n) in enumerate(shapes)]
            inputs = 4 * planes
    return [*layers, (LayerSpec("fc", torch.Size([1000, 2048])), 1)]


def share_of_flops(counts, layers):
    dense = sum(spec.numel * positions for spec, positions in layers)
    return sum(k * positions for k, (_spec, positions) in zip(counts, layers, strict=True)) / dense


def test_the_network_is_resnet50():
    layers = resnet50()
    assert sum(spec.numel for spec, _ in layers) == 25_502_912
    assert sum(spec.numel * positions for spec, positions in layers) == pytest.approx(4.1e9, rel=0.01)


def test_erk_of_resnet50_at_90_percent_costs_about_a_quarter_of_dense():
    layers = resnet50()
    specs = [spec for spec, _ in layers]
    n = round(0.1 * sum(spec.numel for spec in specs))
    counts = ErdosRenyiKernel()(specs, n, [1] * len(specs))
    assert sum(counts) == n
    assert share_of_flops(counts, layers) == pytest.approx(0.24, abs=0.005)  # RigL, table 2


def test_uniform_of_resnet50_at_90_percent_with_a_dense_first_layer_costs_0_10_to_0_13():
    layers = resnet50()
    specs = [spec for spec, _ in layers]
    n = specs[0].numel + round(0.1 * sum(spec.numel for spec in specs[1:]))
    counts = Explicit({"conv1": 1.0})(specs, n, [1] * len(specs))
    assert counts[0] == specs[0].numel
    assert 0.10 <= share_of_flops(counts, layers) <= 0.13
