import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from tests.networks import OPTIMIZERS, batch, cnn, mlp, train
from torch import nn

import rewire

GGR = {"density": 0.2, "every": 5, "until": 100}


def sparsify(model, method=None, **options):
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    return rewire.sparsify(model, optimizer, method or rewire.ggr(**GGR), **options)


# --- what must work ----------------------------------------------------------------------------------------------


def test_one_line_in_an_ordinary_loop():
    model = mlp()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    rewirer = rewire.sparsify(model, optimizer, rewire.ggr(**GGR))
    assert rewirer.nnz == round(0.2 * (12 * 16 + 16 * 16 + 16 * 4))
    train(model, optimizer, 30)
    assert rewirer.step == 30
    assert [record.step for record in rewirer.history] == [5, 10, 15, 20, 25, 30]
    assert rewirer.density == rewirer.nnz / (12 * 16 + 16 * 16 + 16 * 4)


def test_the_table():
    rows = [line.split() for line in str(sparsify(cnn(), rewire.static(density=0.2), exclude="6")).splitlines()]
    # ERK of 130 weights: sums of the shapes 17 and 22 of 39, so 57 and 73.
    assert ["layer", "shape", "density", "nnz"] in rows
    assert ["0", "8x3x3x3", "0.2639", "57"] in rows
    assert ["3", "12x4x3x3", "0.1690", "73"] in rows
    assert ["total", "648", "0.2006", "130"] in rows
    assert ["not", "sparse:", "6", "(excluded)"] in rows


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 6, 3), (4, 9)),
        (nn.Conv2d(4, 6, 3, groups=2, dilation=2), (4, 9, 9)),
        (nn.Conv3d(2, 4, 2), (2, 4, 4, 4)),
        (nn.ConvTranspose1d(4, 6, 3), (4, 9)),
        (nn.ConvTranspose2d(4, 6, 3, groups=2, stride=2), (4, 5, 5)),
        (nn.ConvTranspose3d(2, 4, 2), (2, 3, 3, 3)),
        (nn.Conv2d(6, 6, 3, groups=6), (6, 5, 5)),
        (nn.Linear(5, 7), (5,)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_every_kind_of_layer(layer, shape):
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    rewirer = rewire.sparsify(layer, optimizer, rewire.rigl(density=0.4, every=2, until=100), init="fan_in")
    nnz = rewirer.nnz
    for step in range(6):
        layer(batch(step, shape)[0]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert rewirer.nnz == nnz
    assert len(rewirer.history) == 3
    assert not (layer.weight * ~layer.weight_mask).any()


def test_tied_weights_are_one_layer():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 4))
    model[2].weight = model[0].weight
    rewirer = sparsify(model)
    assert [layer.name for layer in rewirer.layers] == ["0", "3"]
    optimizer = rewirer.store.optimizer
    train(model, optimizer, 6, shape=(6,))
    assert model[2].weight is model[0].weight
    assert rewirer.nnz == round(0.2 * 60)


def test_several_parameter_groups():
    model = mlp()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2:].parameters()}], 0.01
    )
    rewirer = rewire.sparsify(model, optimizer, rewire.ggr(**GGR))
    train(model, optimizer, 6)
    assert len(rewirer.history) == 1


def test_compiled_before_or_after():
    plain, before, after = mlp(), mlp(), mlp()
    histories = []
    for model, called in ((plain, plain), (before, torch.compile(before, backend="aot_eager")), (after, None)):
        optimizer = OPTIMIZERS["momentum"](model.parameters())
        rewirer = rewire.sparsify(called or model, optimizer, rewire.ggr(**GGR))
        called = called or torch.compile(model, backend="aot_eager")
        train(called, optimizer, 12)
        assert [layer.name for layer in rewirer.layers] == ["0", "2", "4"]
        histories.append(rewirer.history)
    assert histories[0] == histories[1] == histories[2]


def test_a_deep_copy_is_a_model_of_its_own():
    model = mlp()
    rewirer = sparsify(model)
    twin = copy.deepcopy(model)
    x, _y = batch(0)
    assert torch.equal(twin(x), model(x))
    train(model, rewirer.store.optimizer, 6)
    assert not torch.equal(twin[0].weight, model[0].weight)
    topology = twin[0].weight_mask.clone()
    train(twin, torch.optim.SGD(twin.parameters(), lr=0.1), 2)  # its own topology is enforced, not that of the model
    assert torch.equal(twin[0].weight_mask, topology)
    assert torch.equal(twin[0].weight != 0, topology)


def test_masks_follow_the_model_to_another_type():
    model = mlp()
    rewirer = sparsify(model)
    model.double()
    train(model, rewirer.store.optimizer, 6, dtype=torch.float64)
    assert model[0].weight_mask.dtype == torch.bool
    assert len(rewirer.history) == 1


def test_channels_last_gives_the_same_edits():
    histories, weights = [], []
    for form in (torch.contiguous_format, torch.channels_last):
        model = cnn().double().to(memory_format=form)
        optimizer = OPTIMIZERS["momentum"](model.parameters())
        rewirer = rewire.sparsify(model, optimizer, rewire.ggr(**GGR))
        train(model, optimizer, 12, shape=(3, 6, 6), dtype=torch.float64)
        histories.append(rewirer.history)
        weights.append(model[3].weight.detach().clone())
    assert histories[0] == histories[1]
    assert torch.allclose(*weights)


# --- init="fan_in" -----------------------------------------------------------------------------------------------


def test_fan_in_draws_for_the_connections_that_exist():
    model = nn.Linear(400, 50)
    before = model.weight.detach().clone()
    rewirer = sparsify(model, rewire.static(density=0.05), init="fan_in")
    weight, mask = model.weight.detach(), model.weight_mask
    bound = (6 / mask.sum(1).double()).sqrt()
    assert (weight.abs().amax(1) <= bound).all()
    reached = weight.abs().amax(1)[mask.sum(1) > 10] / bound[mask.sum(1) > 10]
    assert reached.mean() > 0.85  # the bound is the neuron's own, not a common one
    assert not torch.equal(weight[mask], before[mask])
    variance = (weight.square().sum(1) / 2).mean()  # 2 / fan_in each: the output keeps the variance of its input
    assert 0.9 < variance < 1.1
    assert rewirer.nnz == 1000


def test_without_init_the_weights_stay_the_models_own():
    model = nn.Linear(20, 10)
    before = model.weight.detach().clone()
    sparsify(model)
    assert torch.equal(model.weight[model.weight_mask], before[model.weight_mask])


# --- bad input ---------------------------------------------------------------------------------------------------


def test_wrong_types():
    model = mlp()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with pytest.raises(TypeError, match="model must be a torch.nn.modules.module.Module, not 3"):
        rewire.sparsify(3, optimizer, rewire.ggr(**GGR))
    with pytest.raises(TypeError, match="optimizer must be a torch.optim.optimizer.Optimizer"):
        rewire.sparsify(model, model.parameters(), rewire.ggr(**GGR))
    with pytest.raises(TypeError, match=r"method must be .*call the method: rewire.ggr\(density=...\)"):
        rewire.sparsify(model, optimizer, rewire.ggr)
    with pytest.raises(ValueError, match="init must be None or 'fan_in', not 'kaiming'"):
        rewire.sparsify(model, optimizer, rewire.ggr(**GGR), init="kaiming")


def test_unknown_store():
    with pytest.raises(ValueError, match="unknown store 'maskd'. Did you mean 'masked'"):
        sparsify(mlp(), store="maskd")


def test_twice():
    model = mlp()
    rewirer = sparsify(model)
    with pytest.raises(ValueError, match=r"sparse already \(0 has a mask\): call remove"):
        sparsify(model)
    rewirer.remove()
    sparsify(model)


def test_an_optimizer_that_does_not_hold_the_parameters():
    model = mlp()
    with pytest.raises(ValueError, match="does not hold the weight of 2, 4: build it from model.parameters"):
        rewire.sparsify(model, torch.optim.SGD(model[0].parameters(), 0.1), rewire.ggr(**GGR))
    assert "weight_mask" not in dict(model[0].named_buffers())  # nothing was changed


def test_budget_smaller_than_one_weight_per_layer():
    with pytest.raises(ValueError, match=r"leaves 1 weights for 3 layers .* at least 0.006"):
        sparsify(mlp(), rewire.ggr(density=0.002, every=1, until=10))


def test_a_refused_call_changes_nothing():
    model = mlp()
    before = copy.deepcopy(model.state_dict())
    for options in ({"include": "nothing"}, {"store": "x"}, {"init": "y"}):
        with pytest.raises(ValueError, match="matches no layer|unknown store|init must be"):
            sparsify(model, **options)
    with pytest.raises(ValueError, match="dense start"):
        sparsify(model, rewire.ggr(**GGR, start="dense"), init="fan_in")
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))


# --- starts that let nothing through -----------------------------------------------------------------------------


def test_a_dead_start_is_told_with_its_layer_and_the_remedy():
    model = nn.Sequential(nn.Linear(10, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))
    with pytest.warns(UserWarning, match=r"no signal passes .* it ends in 2\..*connected-erk"):
        sparsify(model, rewire.ggr(density=0.0004, every=1, until=10, start="uniform"))


def test_a_live_start_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparsify(cnn())


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6, bias=False), nn.Linear(6, 4, bias=False)

    def forward(self, x):
        hidden = self.first(x)
        return self.last(hidden * 0 if hidden.sum() > float("-inf") else hidden)


def test_where_the_topology_cannot_tell_the_first_gradient_does():
    model = Untraceable()
    rewirer = sparsify(model)
    x, y = batch(0, (6,))
    F.cross_entropy(model(x), y).backward()
    with pytest.warns(UserWarning, match="gradient of every sparse weight is exactly zero"):
        rewirer.store.optimizer.step()


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))


@pytest.mark.parametrize("store", ["masked", "packed"])
@pytest.mark.parametrize("sign", ["norm", "optimizer"])
def test_a_trained_network_is_not_thrown_away_without_a_word(store, sign):
    model = normed() if sign == "norm" else mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, 3)
    if sign == "norm":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    before = copy.deepcopy(model)
    for start in ("erk", "connected-erk"):
        with pytest.warns(UserWarning, match="keeps 20% of its weights at random: start='magnitude' keeps the largest"):
            rewire.sparsify(
                model, optimizer, rewire.rigl(density=0.2, every=3, until=9, start=start), store=store
            ).remove()
        model.load_state_dict(before.state_dict())
    rewire.sparsify(model, optimizer, rewire.rigl(density=0.2, every=3, until=9, start="magnitude"), store=store)


def test_what_is_not_trained_or_not_thrown_away_is_not_mentioned():
    method = rewire.rigl(density=0.2, every=3, until=9)
    model = normed()
    with torch.no_grad():
        model[1].weight.zero_()  # as the last norm of a residual block often starts
    model(torch.randn(2, 12))
    rewire.sparsify(model, torch.optim.SGD(model.parameters(), lr=0.1), method)
    trained = normed()
    nn.init.uniform_(trained[1].weight)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    rewire.sparsify(trained, optimizer, method, init="fan_in").remove()  # the values do not matter
    nn.init.uniform_(trained[0].weight)
    nn.init.uniform_(trained[3].weight)
    rewire.sparsify(trained, optimizer, rewire.gmp(density=0.2, every=3, until=9))  # all weights are kept at first
