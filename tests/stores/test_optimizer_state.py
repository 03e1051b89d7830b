"""Which state of which optimizer moves with the weights, and what the packed store refuses."""

import copy

import pytest
import torch
import torch.nn.functional as F
import transformers
from tests.networks import batch, mlp, train
from tests.stores.packing import topology, weights
from torch import nn

import rewire
from rewire.stores.optimizer import register

ADAFACTORS = {
    "torch": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "transformers": lambda p: transformers.Adafactor(p, lr=0.01, relative_step=False, beta1=0.9),
}


# --- gradients that a step overwrites ---------------------------------------------------------------------------------


class OverwritesGradients(torch.optim.Optimizer):
    """Normalises gradients in place, as ScheduleFree does, and leaves nonsense in them."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.grad.div_(p.grad.norm() + 1e-8)
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"])
            p.grad.copy_(torch.linspace(-1e6, 1e6, p.numel()).view_as(p))


@pytest.mark.parametrize("name", ["rigl", "ggr"])
def test_an_optimizer_that_overwrites_gradients_makes_the_same_edits(name):
    found = []
    for store in ("masked", "packed"):
        model = mlp(dtype=torch.float64)
        optimizer = OverwritesGradients(model.parameters())
        method = rewire.METHODS[name](density=0.3, every=2, until=100, fraction=0.5)
        rewirer = rewire.sparsify(model, optimizer, method, store=store)
        train(model, optimizer, 7, dtype=torch.float64)
        found.append((topology(rewirer), rewirer.history))
    assert len(found[0][1]) == 3
    assert found[0] == found[1]


def test_fused_adam_with_a_grad_scaler_makes_the_same_edits():
    found = []
    for store in ("masked", "packed"):
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        method = rewire.rigl(density=0.3, every=2, until=100, fraction=0.5)
        rewirer = rewire.sparsify(model, optimizer, method, store=store)
        for step in range(7):
            x, y = batch(step)
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        found.append((topology(rewirer), rewirer.history))
    assert len(found[0][1]) == 3
    assert found[0] == found[1]


# --- factored state ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(ADAFACTORS))
def test_a_rewiring_moves_momentum_and_leaves_rows_and_columns_alone(name, monkeypatch):
    """One of the weights has one column, so that shapes say nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 20), nn.ReLU(), nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 4))
    optimizer = ADAFACTORS[name](model.parameters())
    rewirer = rewire.sparsify(
        model, optimizer, rewire.set_(density=0.4, every=2, until=100, fraction=0.5, start="uniform")
    )
    apply, seen = rewirer.store.apply, []

    def watched(edits):
        before = copy.deepcopy([optimizer.state[layer.parameter] for layer in rewirer.layers])
        apply(edits)
        for layer, edit, old in zip(rewirer.layers, edits, before, strict=True):
            now = optimizer.state[layer.parameter]
            for key in {"row_var", "col_var", "exp_avg_sq_row", "exp_avg_sq_col"} & now.keys():
                assert torch.equal(now[key], old[key])
                assert now[key].any()
                assert len(edit.drop)
                seen.append(key)
            if "exp_avg" in now:
                assert not now["exp_avg"].flatten()[torch.cat([edit.drop, edit.grow])].any()

    monkeypatch.setattr(rewirer.store, "apply", watched)
    losses = train(model, optimizer, 20, shape=(1,))
    assert len(rewirer.history) == 10
    assert len(seen) == 10 * 3 * 2
    assert all(map(torch.isfinite, map(torch.tensor, losses)))
    assert all(not (layer.parameter * ~layer.mask).any() for layer in rewirer.layers)


@pytest.mark.parametrize("name", list(ADAFACTORS))
def test_a_vector_as_long_as_there_are_weights_is_not_taken_for_packed_state(name):
    model = nn.Linear(9, 6, bias=False)
    optimizer = ADAFACTORS[name](model.parameters())
    rewirer = rewire.sparsify(model, optimizer, rewire.static(density=6 / 54))
    assert rewirer.nnz == 6
    keys = {"torch": ("row_var", "col_var"), "transformers": ("exp_avg_sq_row", "exp_avg_sq_col")}[name]
    for step in range(3):
        model(torch.randn(4, 9)).square().sum().backward()
        optimizer.step()
        assert [optimizer.state[model.weight][key].numel() for key in keys] == [6, 9]
        if step == 1:
            optimizer.load_state_dict(optimizer.state_dict())


class Unknown(torch.optim.SGD):
    """Keeps a vector for the rows under a name that nobody knows."""

    def step(self, closure=None):
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("what", torch.ones(6))


def test_an_ambiguous_vector_is_asked_about():
    model = nn.Linear(9, 6, bias=False)
    optimizer = Unknown(model.parameters(), lr=0.1)
    rewire.sparsify(model, optimizer, rewire.static(density=6 / 54))

    def step():
        model(torch.randn(4, 9)).square().sum().backward()
        optimizer.step()

    step()
    step()
    assert optimizer.state[model.weight]["what"].shape == (6,)
    optimizer.load_state_dict(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"keeps what of length 6 .*register\(Unknown, what=0.0\) or what='shared'"):
        step()
    register(Unknown, what="shared")
    step()
    assert optimizer.state[model.weight]["what"].shape == (6,)


def test_state_in_a_code_of_its_own_is_refused():
    class EightBit(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for p in self.param_groups[0]["params"]:
                self.state[p]["state1"] = torch.full(p.shape, 127, dtype=torch.uint8)

    model = mlp()
    optimizer = EightBit(model.parameters(), lr=0.1)
    rewire.sparsify(model, optimizer, rewire.rigl(density=0.3, every=2, until=100))
    with pytest.raises(ValueError, match=r"EightBit keeps state1 as torch.uint8.*cannot move"):
        train(model, optimizer, 2)


# --- what needs whole weights -----------------------------------------------------------------------------------------


class Wrapper(torch.optim.Optimizer):
    """As Accelerate's: it has an optimizer inside."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)


class MuonWithAdam(torch.optim.SGD):
    """Somebody's own Muon."""


class MyAdafactor(torch.optim.Adafactor):
    pass


REFUSED = [
    torch.optim.LBFGS,
    torch.optim.Muon,
    torch.optim.Adafactor,
    transformers.Adafactor,
    MuonWithAdam,
    MyAdafactor,
]


@pytest.mark.parametrize("wrap", [0, 1, 2])
@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_an_optimizer_that_needs_whole_weights_is_refused_through_wrappers_too(kind, wrap):
    model = nn.Sequential(nn.Linear(12, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False))
    optimizer = kind(model.parameters(), lr=None if kind is transformers.Adafactor else 0.1)
    for _ in range(wrap):
        optimizer = Wrapper(optimizer)
    with pytest.raises(ValueError, match=rf"^{kind.__name__} .*[uU]se store='masked'"):
        rewire.sparsify(model, optimizer, rewire.static(density=0.5), store="packed")
    assert type(model[0]) is nn.Linear
    rewirer = rewire.sparsify(
        model, torch.optim.SGD(model.parameters(), lr=0.1), rewire.static(density=0.5), store="packed"
    )
    with pytest.raises(ValueError, match=rf"^{kind.__name__} .*[uU]se store='masked'"):
        rewirer.follow(optimizer)


# --- wrappers with state of their own ---------------------------------------------------------------------------------


class SAM(torch.optim.Optimizer):
    """Climbs before the base optimizer's step, in two halves that the loop calls."""

    def __init__(self, params, base, **options):
        super().__init__(params, {"rho": 0.05, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        for p in self.param_groups[0]["params"]:
            self.state[p]["old_p"] = p.detach().clone()
            p.add_(p.grad, alpha=self.param_groups[0]["rho"])
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for p in self.param_groups[0]["params"]:
            p.copy_(self.state[p]["old_p"])
        self.base_optimizer.step()
        self.zero_grad()


@pytest.mark.parametrize("base", [torch.optim.Adam, torch.optim.SGD])
def test_the_optimizer_inside_sam_moves_its_state(base):
    found = []
    for store in ("masked", "packed"):
        model = mlp(dtype=torch.float64)
        optimizer = SAM(model.parameters(), base, lr=0.01)
        rewirer = rewire.sparsify(model, optimizer, rewire.set_(density=0.3, every=2, until=100), store=store)
        for step in range(7):
            x, y = batch(step, dtype=torch.float64)
            F.cross_entropy(model(x), y).backward()
            optimizer.first_step()
            F.cross_entropy(model(x), y).backward()
            optimizer.second_step()
        assert len(rewirer.history) == 3
        found.append(rewirer)
    assert topology(found[0]) == topology(found[1])
    torch.testing.assert_close(weights(found[0]), weights(found[1]), rtol=1e-8, atol=1e-11)
    for layer in found[0].layers:
        assert not (layer.parameter * ~layer.mask).any()


# --- what is zero where no weight is ----------------------------------------------------------------------------------


def test_state_of_dropped_weights():
    """Zero at the rewiring. Rprop and Adamax then write their smallest value where the gradient is zero; it moves
    nothing, and a weight that is born there starts afresh."""
    for make, key, least in (
        (lambda p: torch.optim.Rprop(p, lr=0.01), "step_size", 1e-6),
        (lambda p: torch.optim.Adamax(p, lr=0.01), "exp_inf", 1e-8),
        (lambda p: torch.optim.Adam(p, lr=0.01), "exp_avg_sq", 0.0),
    ):
        model = mlp(dtype=torch.float64)
        optimizer = make(model.parameters())
        rewirer = rewire.sparsify(model, optimizer, rewire.set_(density=0.3, every=3, until=3, fraction=0.5))
        masks = [layer.mask.clone() for layer in rewirer.layers]
        train(model, optimizer, 3, dtype=torch.float64)
        dropped = [old & ~layer.mask for old, layer in zip(masks, rewirer.layers, strict=True)]
        assert all(
            not optimizer.state[one.parameter][key][d].any() for one, d in zip(rewirer.layers, dropped, strict=True)
        )
        train(model, optimizer, 2, begin=3, dtype=torch.float64)
        for layer, gone in zip(rewirer.layers, dropped, strict=True):
            assert (optimizer.state[layer.parameter][key][gone] <= least).all()
            assert not layer.parameter[gone].any()
