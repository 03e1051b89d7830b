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
    # Gradients at what remains are those of the original.
    kept = plan(model, (EXAMPLE,), topology_masks(model)).indices
    before, after = gradients(model, x), gradients(small, x)
    for name, gradient in before.items():
        if gradient.numel() == 1 and isinstance(model.get_submodule(name.rpartition(".")[0]), nn.PReLU):
            continue  # one slope for all channels: its gradient loses the part of constant channels, which are removed
        for (sliced, dim), index in kept.items():
            if sliced == name:
                gradient = gradient.index_select(dim, index)
        if gradient.shape != after[name].shape:  # cut a second time, when a grouped layer was left with one group
            continue
        mask = state.get(f"{name}_mask", torch.ones_like(gradient))
        torch.testing.assert_close(after[name] * mask, gradient * mask, rtol=1e-7, atol=1e-9)
