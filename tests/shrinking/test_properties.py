"""Random architectures, random topologies: what must hold for all of them."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from rewire.shrinking.plan import plan
from rewire.shrinking.shrink import shrink_with_report, topology_masks

ACTIVATIONS = [nn.ReLU, nn.ReLU6, nn.GELU, nn.Sigmoid, lambda: nn.LeakyReLU(0.1), lambda: nn.PReLU()]


class Block(nn.Module):
    """A convolution with batch norm, maybe on a residual branch, maybe concatenated with its input."""

    def __init__(self, inputs, outputs, kind, activation, padding, bias):
        super().__init__()
        self.kind = kind
        width = inputs if kind == "residual" else outputs
        padding = 1 if kind in ("residual", "concatenated") else padding
        groups = {"depthwise": inputs, "grouped": 2}.get(kind, 1)
        width = inputs * 2 if kind == "depthwise" else width - width % groups
        self.conv = nn.Conv2d(inputs, width, 3, padding=padding, groups=groups, bias=bias)
        self.norm, self.activation = nn.BatchNorm2d(width), activation()
        self.outputs = inputs + width if kind == "concatenated" else width

    def forward(self, x):
        y = self.activation(self.norm(self.conv(x)))
        if self.kind == "residual":
            return x + y
        return torch.cat([x, y], dim=1) if self.kind == "concatenated" else y


@st.composite
def networks(draw):
    torch.manual_seed(draw(st.integers(0, 10_000)))
    channels = draw(st.sampled_from([2, 4]))
    layers = [nn.Conv2d(1, channels, 1)]
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["plain", "residual", "concatenated", "depthwise", "grouped"]))
        outputs, bias = draw(st.sampled_from([2, 4, 6])), draw(st.booleans())
        block = Block(channels, outputs, kind, draw(st.sampled_from(ACTIVATIONS)), draw(st.sampled_from([0, 1])), bias)
        layers.append(block)
        channels = block.outputs
    layers += [draw(st.sampled_from([nn.Identity(), nn.AvgPool2d(3, 1, 1), nn.MaxPool2d(2, 1)]))]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(channels * 4, 3)).double().eval()
    density = draw(st.sampled_from([0.02, 0.1, 0.3]))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for one in (module.weight.data, module.bias.data, module.running_mean):
                one.normal_()
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_buffer("weight_mask", torch.rand_like(module.weight) < density)
            module.weight.data *= module.weight_mask
    return model


EXAMPLE = torch.randn(2, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(networks())
def test_the_same_function_with_the_same_gradients_and_no_more_parameters(model):
    small, report = shrink_with_report(model, EXAMPLE)
    x = 3 * EXAMPLE + 1
    torch.testing.assert_close(small(x), model(x), rtol=1e-9, atol=1e-9)
    assert report.after <= report.before
    assert report.after == sum(p.numel() for p in small.parameters())
    again, second = shrink_with_report(small, EXAMPLE)
    assert second.after == report.after
    state = small.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in again.state_dict().items())
    # Gradients of what remains are those of the original.
    kept = plan(model, (EXAMPLE,), topology_masks(model))
    before, after = gradients(model, x), gradients(small, x)
    for name, gradient in before.items():
        if gradient.numel() == 1 and isinstance(model.get_submodule(name.rpartition(".")[0]), nn.PReLU):
            continue  # one slope for all channels: its gradient loses the part of constant channels, which are removed
        depends = depends_on_the_input(model, kept, name)
        for (sliced, dim), index in kept.indices.items():
            if sliced == name:
                gradient = gradient.index_select(dim, index)
                depends = depends.index_select(0, index) if dim == 0 else depends
        if gradient.shape != after[name].shape:  # cut a second time, when a grouped layer was left with one group
            continue
        mask = state.get(f"{name}_mask", torch.ones_like(gradient))
        expected, found = (gradient * mask)[depends], (after[name] * mask)[depends]
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


def depends_on_the_input(model, kept, name):
    """Which channels of a parameter carry signal; those of the network's outputs have nothing behind them to lose.

    A channel without inputs is kept where its layer would have none, or where another channel is added to it. A neuron
    that reads nothing else is a constant too: where that one was removed, its part is missing in the gradient of the
    kept one.
    """
    path = name.rpartition(".")[0]
    if path == f"{len(model) - 1}":
        return torch.ones(len(model[-1].bias), dtype=torch.bool)
    layer = path.removesuffix("norm").removesuffix("activation")
    layer = layer if layer == path else f"{layer}conv"
    return next(use.outputs.live for use in kept.layers if use.weight == f"{layer}.weight")


def test_a_kept_constant_channel_loses_the_gradient_of_what_was_folded_and_the_output_stays():
    """Nothing reads the input: each layer keeps one constant channel, and the other one is in the bias behind it."""
    model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 2), nn.Linear(2, 1)).double()
    for layer, weight, bias in zip(
        model,
        ([[0.0], [0.0]], [[2.0, 0.0], [3.0, 1.0]], [[1.0, 1.0]]),
        ([0.5, 0.25], [0.0, 0.0], [0.0]),
        strict=True,
    ):
        layer.weight.data, layer.bias.data = torch.tensor(weight).double(), torch.tensor(bias).double()
    x = torch.tensor([[4.0]]).double()
    small, report = shrink_with_report(model, x, topology="nonzero")
    assert model(x).item() == small(x).item() == 2.75  # 2 * 0.5 + 3 * 0.5 + 0.25
    assert report.after == 2 + 2 + 2
    before, after = gradients(model, x), gradients(small, x)
    assert before["0.bias"].tolist() == [27.5, 5.5]  # 2 * 2.75 * (2 + 3), 2 * 2.75 * 1
    assert after["0.bias"].tolist() == [11.0]  # without the part through the removed channel: 2 * 2.75 * 3
    assert after["2.bias"].tolist() == before["2.bias"].tolist() == [5.5]
