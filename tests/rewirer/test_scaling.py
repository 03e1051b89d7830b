"""Weights and learning rates by density, on layers small enough to compute by hand."""

import pytest
import torch
from torch import nn

import rewire
from rewire.rewirer.scaling import density_groups, scale_weights


def small(store="masked"):
    """Two layers of density 1/4 and 1, and a norm that is dense."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    method = rewire.static(density=0.5, start={"0": 0.25, "2": 1.0})
    return model, optimizer, rewire.sparsify(model, optimizer, method, store=store)


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_learning_rates_by_density(store):
    model, _, rewirer = small(store)
    ((others, first, second),) = density_groups(rewirer)
    assert others["lr"] == 0.1
    assert first["lr"] == pytest.approx(0.4)  # a quarter of the terms: four times the rate
    assert second["lr"] == pytest.approx(0.1)
    assert all(group["momentum"] == 0.9 and group["weight_decay"] == 1e-4 for group in (others, first, second))
    assert first["params"] == [rewirer.layers[0].parameter]
    assert len(others["params"]) == 4  # two biases, and the norm's weight and bias
    half = density_groups(rewirer, base=0.5)[0]
    assert [group["lr"] for group in half] == pytest.approx([0.1, 0.2, 0.05])
    optimizer = torch.optim.SGD(density_groups(rewirer)[0])
    rewirer.follow(optimizer)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    rewirer.check()


def test_groups_of_named_parameters_keep_the_names_of_their_own():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=0.5))
    (groups,) = density_groups(rewirer)
    names = [["0.bias", "1.weight", "1.bias", "2.bias"], ["0.weight"], ["2.weight"]]
    assert [group["param_names"] for group in groups] == names
    assert all(len(group["params"]) == len(group["param_names"]) for group in groups)


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_weights_by_density(store):
    _, _, rewirer = small(store)
    before = [layer.parameter.detach().clone() for layer in rewirer.layers]
    scale_weights(rewirer)
    torch.testing.assert_close(rewirer.layers[0].parameter.detach(), 2.0 * before[0])  # sqrt(1 / 0.25)
    torch.testing.assert_close(rewirer.layers[1].parameter.detach(), before[1])
    rewirer.check()


def test_outputs_keep_their_scale():
    torch.manual_seed(0)
    scales = []
    for density in (1.0, 0.05):
        model = nn.Sequential(nn.Linear(400, 400, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rewirer = rewire.sparsify(model, optimizer, rewire.static(density=density, start="uniform"))
        scale_weights(rewirer)
        scales.append(model(torch.randn(256, 400)).std().item())
    assert scales[1] == pytest.approx(scales[0], rel=0.05)


def test_what_has_no_density_is_refused():
    model, optimizer, rewirer = small()
    with pytest.raises(ValueError, match="base is the density for which the settings were made"):
        density_groups(rewirer, base=0.0)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match="has made 1 steps"):
        scale_weights(rewirer)
    rewirer.remove()
    with pytest.raises(ValueError, match="was removed"):
        density_groups(rewirer)
