"""The networks of the paper, sparse from the start and really shrunk; and that training goes on."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import rewire
from rewire.analysis.density import densities
from rewire.lab import models
from rewire.shrinking.shrink import TOLERANCE, shrink_with_report


def sparse(name, image, density, start, width):
    model = models.build(name, classes=10, image=image, width=width, seed=0)
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # as after training: constants that are not zero
            for one in (module.bias.data, module.running_mean):
                one.copy_(torch.randn(one.shape, generator=generator))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of these starts let no signal through, which is the hard case
        rewirer = rewire.sparsify(model, optimizer, rewire.static(density=density, start=start))
    for layer in rewirer.layers[:-1]:  # training empties neurons
        layer.mask[::3] = False
        layer.parameter.data[::3] = 0
    return model


@pytest.mark.parametrize("start", ["erk", "uniform"])
@pytest.mark.parametrize("density", [0.03, 0.01])
@pytest.mark.parametrize(("name", "side"), [("vgg16", 32), ("resnet-18", 8), ("mobilenet-v2", 8)])
def test_the_networks_of_the_paper(name, side, density, start):
    model = sparse(name, (3, side, side), density, start, width=0.125)
    small, report = shrink_with_report(model, torch.zeros(1, 3, side, side))
    assert report.difference <= TOLERANCE
    assert report.after < report.before
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    model.eval()
    torch.testing.assert_close(small.eval()(x), model(x), rtol=1e-3, atol=1e-4)  # float32: rounding only


def rewired(name, side, density, start):
    """As GGR leaves it after a few steps: nothing is emptied by hand."""
    model = models.build(name, classes=10, image=(3, side, side), width=0.125, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rewirer = rewire.sparsify(model, optimizer, rewire.ggr(density=density, every=2, until=6, start=start))
        for _ in range(6):
            x = torch.randn(4, 3, side, side, generator=generator)
            F.cross_entropy(model(x), torch.randint(10, (4,), generator=generator)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert rewirer.history
    return model.eval()


@pytest.mark.parametrize("start", ["erk", "uniform"])
@pytest.mark.parametrize("density", [0.03, 0.01])
@pytest.mark.parametrize(("name", "side"), [("vgg16", 64), ("resnet-18", 8), ("mobilenet-v2", 8)])
def test_the_networks_of_the_paper_as_they_are_trained(name, side, density, start):
    model, x = rewired(name, side, density, start), torch.randn(2, 3, side, side)
    small, report = shrink_with_report(model, torch.zeros(1, 3, side, side), packed=True)
    assert report.difference <= TOLERANCE
    assert report.after <= report.before
    assert report.weights == tuple(sum(one.nnz for one in densities(net)) for net in (model, small))
    scale = float(model(x).detach().abs().max())
    for same in (small, rewire.pack(small)):
        torch.testing.assert_close(same.eval()(x), model(x), rtol=1e-4, atol=1e-5 * scale)
    if any(one.units.empty_neurons for one in densities(model)[1:-1]) and name != "resnet-18":
        assert report.after < report.before  # in a residual stream the other side may need the channel


def test_a_shrunk_model_goes_on_training():
    model = sparse("vgg-small", (1, 8, 8), 0.1, "erk", width=0.25)
    small = rewire.shrink(model, torch.zeros(2, 1, 8, 8), masks=False)
    optimizer = torch.optim.SGD(small.parameters(), lr=0.05)
    rewirer = rewire.sparsify(small, optimizer, rewire.ggr(density=0.3, every=2, until=10))
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 1, 8, 8, generator=generator), torch.randint(10, (32,), generator=generator)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(small(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert len(rewirer.history) >= 4
